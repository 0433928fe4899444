// AVX-512's instructions as two of AVX2 each, by the same names: all that the kernels use of them, and no
// more. Lane by lane the results have the same bits, and sums over lanes are made in the same order; numbers
// below 2^-126, which the multiplication of bf16 takes as zeros there, are kept here.
#pragma once

#include "half_conversions.h"
#include "half_lanes.h"
#include "half_numbers.h"
#include "half_products.h"

#define __m512 penstock::halves::F32
#define __m512d penstock::halves::F64
#define __m512i penstock::halves::I512
#define __m512bh penstock::halves::I512
#undef _mm512_abs_ps
#define _mm512_abs_ps penstock::halves::abs_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 penstock::halves::add_epi32
#undef _mm512_add_epi64
#define _mm512_add_epi64 penstock::halves::add_epi64
#undef _mm512_add_pd
#define _mm512_add_pd penstock::halves::add_pd
#undef _mm512_add_ps
#define _mm512_add_ps penstock::halves::add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 penstock::halves::and_si512
#undef _mm512_castps256_ps512
#define _mm512_castps256_ps512 penstock::halves::castps256_ps512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 penstock::halves::castps512_ps256
#undef _mm512_castps_si512
#define _mm512_castps_si512 penstock::halves::castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps penstock::halves::castsi512_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how) penstock::halves::cmp_ps_mask<how>(a, b)
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask penstock::halves::cmpgt_epi32_mask
#undef _mm512_cmple_epi32_mask
#define _mm512_cmple_epi32_mask penstock::halves::cmple_epi32_mask
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 penstock::halves::cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps penstock::halves::cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 penstock::halves::cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 penstock::halves::cvtepu16_epi32
#undef _mm512_cvtepu64_ps
#define _mm512_cvtepu64_ps penstock::halves::cvtepu64_ps
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 penstock::halves::cvtepu8_epi32
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh penstock::halves::cvtneps_pbh
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps penstock::halves::cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 penstock::halves::cvtps_epi32
#undef _mm512_cvtps_epu64
#define _mm512_cvtps_epu64 penstock::halves::cvtps_epu64
#undef _mm512_cvtps_pd
#define _mm512_cvtps_pd penstock::halves::cvtps_pd
#undef _mm512_cvtsepi32_epi8
#define _mm512_cvtsepi32_epi8 penstock::halves::cvtsepi32_epi8
#undef _mm512_cvtss_f32
#define _mm512_cvtss_f32 penstock::halves::cvtss_f32
#undef _mm512_div_pd
#define _mm512_div_pd penstock::halves::div_pd
#undef _mm512_div_ps
#define _mm512_div_ps penstock::halves::div_ps
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps penstock::halves::dpbf16_ps
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, how) penstock::halves::extractf32x8_ps<how>(a)
#undef _mm512_fmadd_pd
#define _mm512_fmadd_pd penstock::halves::fmadd_pd
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps penstock::halves::fmadd_ps
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps penstock::halves::fmsub_ps
#undef _mm512_fnmadd_pd
#define _mm512_fnmadd_pd penstock::halves::fnmadd_pd
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps penstock::halves::fnmadd_ps
#undef _mm512_insertf32x8
#define _mm512_insertf32x8(a, b, how) penstock::halves::insertf32x8<how>(a, b)
#undef _mm512_load_ps
#define _mm512_load_ps penstock::halves::loadu_ps
#undef _mm512_load_si512
#define _mm512_load_si512 penstock::halves::loadu_si512
#undef _mm512_loadu_pd
#define _mm512_loadu_pd penstock::halves::loadu_pd
#undef _mm512_loadu_ps
#define _mm512_loadu_ps penstock::halves::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 penstock::halves::loadu_si512
#undef _mm512_mask_add_pd
#define _mm512_mask_add_pd penstock::halves::mask_add_pd
#undef _mm512_mask_add_ps
#define _mm512_mask_add_ps penstock::halves::mask_add_ps
#undef _mm512_mask_cmp_ps_mask
#define _mm512_mask_cmp_ps_mask(a, b, c, how) penstock::halves::mask_cmp_ps_mask<how>(a, b, c)
#undef _mm512_mask_cmpge_epu64_mask
#define _mm512_mask_cmpge_epu64_mask penstock::halves::mask_cmpge_epu64_mask
#undef _mm512_mask_div_ps
#define _mm512_mask_div_ps penstock::halves::mask_div_ps
#undef _mm512_mask_loadu_ps
#define _mm512_mask_loadu_ps penstock::halves::mask_loadu_ps
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps penstock::halves::mask_mov_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps penstock::halves::mask_storeu_ps
#undef _mm512_mask_sub_ps
#define _mm512_mask_sub_ps penstock::halves::mask_sub_ps
#undef _mm512_maskz_compress_epi32
#define _mm512_maskz_compress_epi32 penstock::halves::maskz_compress_epi32
#undef _mm512_maskz_compress_ps
#define _mm512_maskz_compress_ps penstock::halves::maskz_compress_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 penstock::halves::maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32 penstock::halves::maskz_loadu_epi32
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps penstock::halves::maskz_loadu_ps
#undef _mm512_maskz_mov_pd
#define _mm512_maskz_mov_pd penstock::halves::maskz_mov_pd
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps penstock::halves::maskz_mov_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps penstock::halves::maskz_scalef_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 penstock::halves::max_epi32
#undef _mm512_max_pd
#define _mm512_max_pd penstock::halves::max_pd
#undef _mm512_max_ps
#define _mm512_max_ps penstock::halves::max_ps
#undef _mm512_min_epu64
#define _mm512_min_epu64 penstock::halves::min_epu64
#undef _mm512_min_ps
#define _mm512_min_ps penstock::halves::min_ps
#undef _mm512_mul_epu32
#define _mm512_mul_epu32 penstock::halves::mul_epu32
#undef _mm512_mul_pd
#define _mm512_mul_pd penstock::halves::mul_pd
#undef _mm512_mul_ps
#define _mm512_mul_ps penstock::halves::mul_ps
#undef _mm512_mul_round_ps
#define _mm512_mul_round_ps penstock::halves::mul_round_ps
#undef _mm512_mullo_epi64
#define _mm512_mullo_epi64 penstock::halves::mullo_epi64
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 penstock::halves::reduce_add_epi32
#undef _mm512_reduce_add_pd
#define _mm512_reduce_add_pd penstock::halves::reduce_add_pd
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps penstock::halves::reduce_add_ps
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32 penstock::halves::reduce_max_epi32
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps penstock::halves::reduce_max_ps
#undef _mm512_roundscale_pd
#define _mm512_roundscale_pd(a, how) penstock::halves::roundscale_pd<how>(a)
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) penstock::halves::roundscale_ps<how>(a)
#undef _mm512_scalef_pd
#define _mm512_scalef_pd penstock::halves::scalef_pd
#undef _mm512_scalef_ps
#define _mm512_scalef_ps penstock::halves::scalef_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 penstock::halves::set1_epi32
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 penstock::halves::set1_epi64
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 penstock::halves::set1_epi8
#undef _mm512_set1_pd
#define _mm512_set1_pd penstock::halves::set1_pd
#undef _mm512_set1_ps
#define _mm512_set1_ps penstock::halves::set1_ps
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 penstock::halves::setr_epi32
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 penstock::halves::setr_epi64
#undef _mm512_setzero_pd
#define _mm512_setzero_pd penstock::halves::setzero_pd
#undef _mm512_setzero_ps
#define _mm512_setzero_ps penstock::halves::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 penstock::halves::setzero_si512
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32(a, how) penstock::halves::shuffle_epi32<how>(a)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, how) penstock::halves::shuffle_i32x4<how>(a, b)
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 penstock::halves::shuffle_epi8
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 penstock::halves::slli_epi32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 penstock::halves::slli_epi64
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 penstock::halves::srai_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 penstock::halves::srli_epi16
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 penstock::halves::srli_epi64
#undef _mm512_store_ps
#define _mm512_store_ps penstock::halves::storeu_ps
#undef _mm512_store_si512
#define _mm512_store_si512 penstock::halves::storeu_si512
#undef _mm512_storeu_pd
#define _mm512_storeu_pd penstock::halves::storeu_pd
#undef _mm512_storeu_ps
#define _mm512_storeu_ps penstock::halves::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 penstock::halves::storeu_si512
#undef _mm512_stream_si512
#define _mm512_stream_si512 penstock::halves::stream_si512
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 penstock::halves::sub_epi32
#undef _mm512_sub_epi64
#define _mm512_sub_epi64 penstock::halves::sub_epi64
#undef _mm512_sub_pd
#define _mm512_sub_pd penstock::halves::sub_pd
#undef _mm512_sub_ps
#define _mm512_sub_ps penstock::halves::sub_ps
#undef _mm512_ternarylogic_epi64
#define _mm512_ternarylogic_epi64(a, b, c, how) penstock::halves::ternarylogic_epi64<how>(a, b, c)
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 penstock::halves::unpackhi_epi32
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 penstock::halves::unpackhi_epi64
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 penstock::halves::unpacklo_epi32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 penstock::halves::unpacklo_epi64
#undef _mm512_xor_si512
#define _mm512_xor_si512 penstock::halves::xor_si512
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 penstock::halves::mask_storeu_epi16
#undef _mm256_maskz_loadu_ps
#define _mm256_maskz_loadu_ps penstock::halves::maskz_loadu_half
#undef _mm256_cvtsepi32_epi8
#define _mm256_cvtsepi32_epi8 penstock::halves::cvtsepi32_epi8
#undef _mm256_cvtepi32_epi8
#define _mm256_cvtepi32_epi8 penstock::halves::cvtepi32_epi8
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 penstock::halves::maskz_loadu_epi8
#undef _mm_mask_storeu_epi8
#define _mm_mask_storeu_epi8 penstock::halves::mask_storeu_epi8
#undef _mm_test_epi8_mask
#define _mm_test_epi8_mask penstock::halves::test_epi8_mask
#undef _mm_cvtneps_pbh
#define _mm_cvtneps_pbh penstock::halves::cvtneps_pbh
