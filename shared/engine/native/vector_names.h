// AVX-512's names for what `penstock::parts` has: a vector in as many pieces as this CPU needs for one. All
// that the kernels use of them, and no more.
#pragma once

#define __m512 penstock::parts::F32
#define __m512d penstock::parts::F64
#define __m512i penstock::parts::I512
#define __m512bh penstock::parts::I512
#undef _mm512_abs_ps
#define _mm512_abs_ps penstock::parts::abs_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 penstock::parts::add_epi32
#undef _mm512_add_epi64
#define _mm512_add_epi64 penstock::parts::add_epi64
#undef _mm512_add_pd
#define _mm512_add_pd penstock::parts::add_pd
#undef _mm512_add_ps
#define _mm512_add_ps penstock::parts::add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 penstock::parts::and_si512
#undef _mm512_castps256_ps512
#define _mm512_castps256_ps512 penstock::parts::castps256_ps512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 penstock::parts::castps512_ps256
#undef _mm512_castps_si512
#define _mm512_castps_si512 penstock::parts::castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps penstock::parts::castsi512_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how) penstock::parts::cmp_ps_mask<how>(a, b)
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask penstock::parts::cmpgt_epi32_mask
#undef _mm512_cmple_epi32_mask
#define _mm512_cmple_epi32_mask penstock::parts::cmple_epi32_mask
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 penstock::parts::cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps penstock::parts::cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 penstock::parts::cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 penstock::parts::cvtepu16_epi32
#undef _mm512_cvtepu64_ps
#define _mm512_cvtepu64_ps penstock::parts::cvtepu64_ps
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 penstock::parts::cvtepu8_epi32
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh penstock::parts::cvtneps_pbh
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps penstock::parts::cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 penstock::parts::cvtps_epi32
#undef _mm512_cvtps_epu64
#define _mm512_cvtps_epu64 penstock::parts::cvtps_epu64
#undef _mm512_cvtps_pd
#define _mm512_cvtps_pd penstock::parts::cvtps_pd
#undef _mm512_cvtsepi32_epi8
#define _mm512_cvtsepi32_epi8 penstock::parts::cvtsepi32_epi8
#undef _mm512_cvtss_f32
#define _mm512_cvtss_f32 penstock::parts::cvtss_f32
#undef _mm512_div_pd
#define _mm512_div_pd penstock::parts::div_pd
#undef _mm512_div_ps
#define _mm512_div_ps penstock::parts::div_ps
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps penstock::parts::dpbf16_ps
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, how) penstock::parts::extractf32x8_ps<how>(a)
#undef _mm512_fmadd_pd
#define _mm512_fmadd_pd penstock::parts::fmadd_pd
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps penstock::parts::fmadd_ps
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps penstock::parts::fmsub_ps
#undef _mm512_fnmadd_pd
#define _mm512_fnmadd_pd penstock::parts::fnmadd_pd
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps penstock::parts::fnmadd_ps
#undef _mm512_insertf32x8
#define _mm512_insertf32x8(a, b, how) penstock::parts::insertf32x8<how>(a, b)
#undef _mm512_load_ps
#define _mm512_load_ps penstock::parts::loadu_ps
#undef _mm512_load_si512
#define _mm512_load_si512 penstock::parts::loadu_si512
#undef _mm512_loadu_pd
#define _mm512_loadu_pd penstock::parts::loadu_pd
#undef _mm512_loadu_ps
#define _mm512_loadu_ps penstock::parts::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 penstock::parts::loadu_si512
#undef _mm512_mask_add_pd
#define _mm512_mask_add_pd penstock::parts::mask_add_pd
#undef _mm512_mask_add_ps
#define _mm512_mask_add_ps penstock::parts::mask_add_ps
#undef _mm512_mask_cmp_ps_mask
#define _mm512_mask_cmp_ps_mask(a, b, c, how) penstock::parts::mask_cmp_ps_mask<how>(a, b, c)
#undef _mm512_mask_cmpge_epu64_mask
#define _mm512_mask_cmpge_epu64_mask penstock::parts::mask_cmpge_epu64_mask
#undef _mm512_mask_div_ps
#define _mm512_mask_div_ps penstock::parts::mask_div_ps
#undef _mm512_mask_loadu_ps
#define _mm512_mask_loadu_ps penstock::parts::mask_loadu_ps
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps penstock::parts::mask_mov_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps penstock::parts::mask_storeu_ps
#undef _mm512_mask_sub_ps
#define _mm512_mask_sub_ps penstock::parts::mask_sub_ps
#undef _mm512_maskz_compress_epi32
#define _mm512_maskz_compress_epi32 penstock::parts::maskz_compress_epi32
#undef _mm512_maskz_compress_ps
#define _mm512_maskz_compress_ps penstock::parts::maskz_compress_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 penstock::parts::maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32 penstock::parts::maskz_loadu_epi32
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps penstock::parts::maskz_loadu_ps
#undef _mm512_maskz_mov_pd
#define _mm512_maskz_mov_pd penstock::parts::maskz_mov_pd
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps penstock::parts::maskz_mov_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps penstock::parts::maskz_scalef_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 penstock::parts::max_epi32
#undef _mm512_max_pd
#define _mm512_max_pd penstock::parts::max_pd
#undef _mm512_max_ps
#define _mm512_max_ps penstock::parts::max_ps
#undef _mm512_min_epu64
#define _mm512_min_epu64 penstock::parts::min_epu64
#undef _mm512_min_ps
#define _mm512_min_ps penstock::parts::min_ps
#undef _mm512_mul_epu32
#define _mm512_mul_epu32 penstock::parts::mul_epu32
#undef _mm512_mul_pd
#define _mm512_mul_pd penstock::parts::mul_pd
#undef _mm512_mul_ps
#define _mm512_mul_ps penstock::parts::mul_ps
#undef _mm512_mul_round_ps
#define _mm512_mul_round_ps penstock::parts::mul_round_ps
#undef _mm512_mullo_epi16
#define _mm512_mullo_epi16 penstock::parts::mullo_epi16
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32 penstock::parts::mullo_epi32
#undef _mm512_mullo_epi64
#define _mm512_mullo_epi64 penstock::parts::mullo_epi64
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 penstock::parts::reduce_add_epi32
#undef _mm512_reduce_add_pd
#define _mm512_reduce_add_pd penstock::parts::reduce_add_pd
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps penstock::parts::reduce_add_ps
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32 penstock::parts::reduce_max_epi32
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps penstock::parts::reduce_max_ps
#undef _mm512_roundscale_pd
#define _mm512_roundscale_pd(a, how) penstock::parts::roundscale_pd<how>(a)
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) penstock::parts::roundscale_ps<how>(a)
#undef _mm512_scalef_pd
#define _mm512_scalef_pd penstock::parts::scalef_pd
#undef _mm512_scalef_ps
#define _mm512_scalef_ps penstock::parts::scalef_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 penstock::parts::set1_epi32
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 penstock::parts::set1_epi64
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 penstock::parts::set1_epi8
#undef _mm512_set1_pd
#define _mm512_set1_pd penstock::parts::set1_pd
#undef _mm512_set1_ps
#define _mm512_set1_ps penstock::parts::set1_ps
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 penstock::parts::setr_epi32
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 penstock::parts::setr_epi64
#undef _mm512_setzero_pd
#define _mm512_setzero_pd penstock::parts::setzero_pd
#undef _mm512_setzero_ps
#define _mm512_setzero_ps penstock::parts::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 penstock::parts::setzero_si512
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32(a, how) penstock::parts::shuffle_epi32<how>(a)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, how) penstock::parts::shuffle_i32x4<how>(a, b)
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 penstock::parts::shuffle_epi8
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 penstock::parts::slli_epi32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 penstock::parts::slli_epi64
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 penstock::parts::srai_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 penstock::parts::srli_epi16
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 penstock::parts::srli_epi64
#undef _mm512_store_ps
#define _mm512_store_ps penstock::parts::storeu_ps
#undef _mm512_store_si512
#define _mm512_store_si512 penstock::parts::storeu_si512
#undef _mm512_storeu_pd
#define _mm512_storeu_pd penstock::parts::storeu_pd
#undef _mm512_storeu_ps
#define _mm512_storeu_ps penstock::parts::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 penstock::parts::storeu_si512
#undef _mm512_stream_si512
#define _mm512_stream_si512 penstock::parts::stream_si512
#undef _mm512_sub_epi16
#define _mm512_sub_epi16 penstock::parts::sub_epi16
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 penstock::parts::sub_epi32
#undef _mm512_sub_epi64
#define _mm512_sub_epi64 penstock::parts::sub_epi64
#undef _mm512_sub_pd
#define _mm512_sub_pd penstock::parts::sub_pd
#undef _mm512_sub_ps
#define _mm512_sub_ps penstock::parts::sub_ps
#undef _mm512_ternarylogic_epi64
#define _mm512_ternarylogic_epi64(a, b, c, how) penstock::parts::ternarylogic_epi64<how>(a, b, c)
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 penstock::parts::unpackhi_epi32
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 penstock::parts::unpackhi_epi64
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 penstock::parts::unpacklo_epi32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 penstock::parts::unpacklo_epi64
#undef _mm512_xor_si512
#define _mm512_xor_si512 penstock::parts::xor_si512
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 penstock::parts::mask_storeu_epi16
#undef _mm256_maskz_loadu_ps
#define _mm256_maskz_loadu_ps penstock::parts::maskz_loadu_half
#undef _mm256_cvtsepi32_epi8
#define _mm256_cvtsepi32_epi8 penstock::parts::cvtsepi32_epi8
#undef _mm256_cvtepi32_epi8
#define _mm256_cvtepi32_epi8 penstock::parts::cvtepi32_epi8
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 penstock::parts::maskz_loadu_epi8
#undef _mm_mask_storeu_epi8
#define _mm_mask_storeu_epi8 penstock::parts::mask_storeu_epi8
#undef _mm_test_epi8_mask
#define _mm_test_epi8_mask penstock::parts::test_epi8_mask
#undef _mm_cvtneps_pbh
#define _mm_cvtneps_pbh penstock::parts::cvtneps_pbh
