// Products of few rows with a weight in half precision: each column of four weights is read once
// from memory and multiplied with all rows: widened to float32, or in bfloat16 on processors that
// multiply it (AVX512-BF16). A row's sums do not depend on the rows beside it.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/library.h>

#if defined(__x86_64__) && defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 9)
#include <immintrin.h>
#define DECODERS_BFLOAT16_PRODUCTS
#endif

namespace {

using Wide = at::vec::Vectorized<float>;

constexpr int kColumns = 4;       // weights [in] read side by side
constexpr int kRows = 6;          // rows beside them: kRows * kColumns sums fit into registers
constexpr int64_t kGrain = 16;    // columns of a thread at least

// Sums x[R, width] times w[C, width], into out[R, stride].
template <typename T, int R, int C>
void block(const float* x, const T* w, float* out, int64_t width, int64_t stride) {
  using Half = at::vec::Vectorized<T>;
  Wide sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = Wide(0.f);
  for (int64_t k = 0; k < width; k += Half::size()) {
    Wide low[C], high[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + (C + c) * width + k);
      std::tie(low[c], high[c]) = at::vec::convert_to_float<T>(Half::loadu(w + c * width + k));
    }
    for (int r = 0; r < R; r++) {
      const float* row = x + r * width + k;
      const Wide first = Wide::loadu(row), second = Wide::loadu(row + Wide::size());
      for (int c = 0; c < C; c++) {
        sums[r][c] = at::vec::fmadd(first, low[c], sums[r][c]);
        sums[r][c] = at::vec::fmadd(second, high[c], sums[r][c]);
      }
    }
  }
  const auto plus = [](Wide& a, Wide& b) { return a + b; };
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++)
      out[r * stride + c] = at::vec::vec_reduce_all<float>(plus, sums[r][c]);
}

#ifdef DECODERS_BFLOAT16_PRODUCTS
// The same of rows in bfloat16, without widening: twice the products at a time.
template <typename T, int R, int C>
__attribute__((target("avx512bf16"))) void block(
    const at::BFloat16* x, const T* w, float* out, int64_t width, int64_t stride) {
  __m512 sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = _mm512_setzero_ps();
  for (int64_t k = 0; k < width; k += 2 * Wide::size()) {
    __m512bh columns[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + (C + c) * width + k);
      columns[c] = (__m512bh)_mm512_loadu_si512(w + c * width + k);
    }
    for (int r = 0; r < R; r++) {
      const __m512bh row = (__m512bh)_mm512_loadu_si512(x + r * width + k);
      for (int c = 0; c < C; c++) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], row, columns[c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) out[r * stride + c] = _mm512_reduce_add_ps(sums[r][c]);
}

bool multiplies_bfloat16() {
  static const bool known = __builtin_cpu_supports("avx512bf16");
  return known;
}
#endif

template <typename T, int C, typename X>
void column(int64_t rows, const X* x, const T* w, float* out, int64_t width, int64_t stride) {
  while (rows > 0) {
    switch (rows) {
      case 1: return block<T, 1, C>(x, w, out, width, stride);
      case 2: return block<T, 2, C>(x, w, out, width, stride);
      case 3: return block<T, 3, C>(x, w, out, width, stride);
      case 4: return block<T, 4, C>(x, w, out, width, stride);
      case 5: return block<T, 5, C>(x, w, out, width, stride);
      default: block<T, kRows, C>(x, w, out, width, stride);
    }
    rows -= kRows;
    x += kRows * width;
    out += kRows * stride;
  }
}

template <typename T, typename X>
void multiply(int64_t rows, const X* x, const T* w, float* out, int64_t width, int64_t count) {
  const int64_t groups = (count + kColumns - 1) / kColumns;
  at::parallel_for(0, groups, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kColumns; n < std::min(end * kColumns, count); n += kColumns) {
      if (n + kColumns <= count) {
        column<T, kColumns>(rows, x, w + n * width, out + n, width, count);
        continue;
      }
      for (int64_t last = n; last < count; last++)
        column<T, 1>(rows, x, w + last * width, out + last, width, count);
    }
  });
}

// x [..., in] times weight [out, in]: by the library's product if there are more rows than `few`.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, int64_t few) {
  const int64_t width = weight.size(1), count = weight.size(0), rows = x.numel() / width;
  const bool fits = weight.is_contiguous() && width % (2 * Wide::size()) == 0;
  if (rows > few || !fits) return at::linear(x, weight);
  auto shape = x.sizes().vec();
  shape.back() = count;
  const at::Tensor sums = at::empty(shape, x.options().dtype(at::kFloat));
  float* out = sums.mutable_data_ptr<float>();
#ifdef DECODERS_BFLOAT16_PRODUCTS
  if (weight.scalar_type() == at::kBFloat16 && multiplies_bfloat16()) {
    const at::Tensor given = x.contiguous();
    const auto* w = weight.const_data_ptr<at::BFloat16>();
    multiply(rows, given.const_data_ptr<at::BFloat16>(), w, out, width, count);
    return sums.to(at::kBFloat16);
  }
#endif
  const at::Tensor given = x.to(at::kFloat).contiguous();
  AT_DISPATCH_REDUCED_FLOATING_TYPES(weight.scalar_type(), "product", [&] {
    const scalar_t* w = weight.const_data_ptr<scalar_t>();
    multiply(rows, given.const_data_ptr<float>(), w, out, width, count);
  });
  return sums.to(weight.scalar_type());
}

}  // namespace

TORCH_LIBRARY(decoders, library) {
  library.def("product(Tensor x, Tensor weight, int few) -> Tensor");
}
TORCH_LIBRARY_IMPL(decoders, CPU, library) { library.impl("product", product); }
