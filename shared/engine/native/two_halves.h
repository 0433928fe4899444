// AVX-512's instructions as two of AVX2 each, by the same names. Lane by lane the results have the same bits,
// and sums over lanes are made in the same order; numbers below 2^-126, which the multiplication of bf16
// takes as zeros there, are kept here.
#pragma once

#include "half_conversions.h"
#include "half_lanes.h"
#include "half_numbers.h"
#include "half_products.h"

namespace penstock {
namespace parts = halves;
}

#include "vector_names.h"
