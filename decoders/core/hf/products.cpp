// Products of few rows with a weight, which is read from memory once and multiplied with all rows.
//
// * [out, in] (half precision; a head tied to the embedding): four columns at a time, widened to
//   float32, or in bfloat16 on processors that multiply bfloat16 (AVX512-BF16).
// * [in, out] (float32): panels of vectors of columns, which need no sums over lanes.
//
// A row's sums do not depend on the other rows.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/library.h>

#if defined(CPU_CAPABILITY_AVX512) && (__GNUC__ >= 11 || __clang_major__ >= 9)
#include <immintrin.h>
#define DECODERS_BFLOAT16_PRODUCTS
#endif

namespace {

using Wide = at::vec::Vectorized<float>;

constexpr int kColumns = 4;       // columns (weights [in]) read at a time
constexpr int kRows = 6;          // rows read at a time: kRows * kColumns sums fit into registers
constexpr int64_t kGrain = 16;    // fewest groups of kColumns columns per thread
constexpr int64_t kAhead = 8;     // lines of a panel that are prefetched
constexpr int64_t kLong = 64;     // rows from which the library is faster than float32 columns
#if defined(CPU_CAPABILITY_AVX512) || defined(__aarch64__)
constexpr int kSums = 24;         // vectors of sums in a panel, by the number of registers
#else
constexpr int kSums = 12;
#endif

// Loads 2 * Wide::size() weights as float32.
template <typename T>
std::tuple<Wide, Wide> widened(const T* w) {
  if constexpr (std::is_same_v<T, float>)
    return {Wide::loadu(w), Wide::loadu(w + Wide::size())};
  else
    return at::vec::convert_to_float<T>(at::vec::Vectorized<T>::loadu(w));
}

// Multiplies x[R, width] by w[C, width] into out[R, stride]; rounds each sum once.
template <typename T, int R, int C>
void block(const float* x, const T* w, T* out, int64_t width, int64_t stride) {
  Wide sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = Wide(0.f);
  for (int64_t k = 0; k < width; k += 2 * Wide::size()) {
    Wide low[C], high[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + (C + c) * width + k);
      std::tie(low[c], high[c]) = widened(w + c * width + k);
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
// Returns the sums of four vectors: adds lanes in pairs, then in fours, then quarters of a vector.
inline __m128 summed(__m512 a, __m512 b, __m512 c, __m512 d) {
  const auto doubles = [](__m512 x) { return _mm512_castps_pd(x); };
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(doubles(ab), doubles(cd));
  const __m512d high = _mm512_unpackhi_pd(doubles(ab), doubles(cd));
  const __m512 four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(
      _mm512_castps512_ps256(four),
      _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(four), 1)));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// The same for rows in bfloat16, without widening: twice as many products at a time.
template <typename T, int R, int C>
__attribute__((target("avx512bf16,avx512vl"))) void block(
    const at::BFloat16* x, const T* w, T* out, int64_t width, int64_t stride) {
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
  for (int r = 0; r < R; r++) {
    if constexpr (C == 4) {
      const __m128 four = summed(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
      _mm_storeu_si64(out + r * stride, (__m128i)_mm_cvtneps_pbh(four));
    } else {
      for (int c = 0; c < C; c++) out[r * stride + c] = _mm512_reduce_add_ps(sums[r][c]);
    }
  }
}

bool multiplies_bfloat16() {
  static const bool known = __builtin_cpu_supports("avx512bf16");
  return known;
}
#endif

// Calls run<number>() for a number from 1 to N.
template <int N, typename F>
void with_number(int64_t number, const F& run) {
  if (number == N) return run.template operator()<N>();
  if constexpr (N > 1) with_number<N - 1>(number, run);
}

template <typename T, int C, typename X>
void column(int64_t rows, const X* x, const T* w, T* out, int64_t width, int64_t stride) {
  for (int64_t done = 0; done < rows; done += kRows)
    with_number<kRows>(std::min<int64_t>(rows - done, kRows), [&]<int R>() {
      block<T, R, C>(x + done * width, w, out + done * stride, width, stride);
    });
}

template <typename T, typename X>
void multiply(int64_t rows, const X* x, const T* w, T* out, int64_t width, int64_t count) {
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

// Multiplies x[R, depth] by w[depth, C vectors] into out[R, C vectors]; rows of w and out are
// `stride` apart. If C is 1, only the first `lanes` of the vector are columns.
template <int R, int C>
void panel(const float* x, const float* w, float* out, int64_t depth, int64_t stride, int lanes) {
  Wide sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = Wide(0.f);
  for (int64_t k = 0; k < depth; k++, w += stride) {
    Wide columns[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + kAhead * stride + c * Wide::size());
      const int size = C == 1 ? lanes : Wide::size();
      columns[c] = Wide::loadu(w + c * Wide::size(), size);
    }
    for (int r = 0; r < R; r++) {
      const Wide value(x[r * depth + k]);
      for (int c = 0; c < C; c++) sums[r][c] = at::vec::fmadd(value, columns[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++)
      sums[r][c].store(out + r * stride + c * Wide::size(), C == 1 ? lanes : Wide::size());
}

constexpr int most_vectors(int rows) { return std::min(8, kSums / rows); }

// The same for any number of columns (`count`).
template <int R>
void strip(
    const float* x, const float* w, float* out, int64_t depth, int64_t stride, int64_t count) {
  constexpr int64_t size = Wide::size();
  for (int64_t whole = count / size; whole > 0;) {  // panels of about equal width
    const int64_t panels = (whole + most_vectors(R) - 1) / most_vectors(R);
    const int64_t vectors = (whole + panels - 1) / panels;
    with_number<most_vectors(R)>(
        vectors, [&]<int C>() { panel<R, C>(x, w, out, depth, stride, size); });
    whole -= vectors, w += vectors * size, out += vectors * size;
  }
  if (count % size) panel<R, 1>(x, w, out, depth, stride, count % size);
}

void multiply_lines(
    int64_t rows, const float* x, const float* w, float* out, int64_t depth, int64_t count) {
  constexpr int64_t size = Wide::size();
  const int64_t vectors = (count + size - 1) / size;
  at::parallel_for(0, vectors, 1, [&](int64_t begin, int64_t end) {
    // few columns at a time if several blocks of rows read them, to stay in the nearest cache
    const int64_t step = rows > kRows ? most_vectors(kRows) : end - begin;
    for (int64_t at = begin; at < end; at += step) {
      const int64_t width = std::min(std::min(at + step, end) * size, count) - at * size;
      for (int64_t done = 0, taken; done < rows; done += taken) {
        const int64_t blocks = (rows - done + kRows - 1) / kRows;
        taken = (rows - done + blocks - 1) / blocks;
        float* to = out + done * count + at * size;
        with_number<kRows>(taken, [&]<int R>() {
          strip<R>(x + done * depth, w + at * size, to, depth, count, width);
        });
      }
    }
  });
}

// x [..., in] times weight [out, in]; uses the library above `few` rows or for other layouts.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, int64_t few) {
  const int64_t width = weight.size(1), count = weight.size(0);
  const int64_t rows = x.numel() / std::max<int64_t>(width, 1);
  const bool by_lines = weight.scalar_type() == at::kFloat && weight.t().is_contiguous();
  const bool is_long = weight.scalar_type() == at::kFloat && rows >= kLong;
  const bool by_columns = weight.is_contiguous() && width % (2 * Wide::size()) == 0 && !is_long;
  if (rows > few || !(by_lines || by_columns)) return at::linear(x, weight);
  auto shape = x.sizes().vec();
  shape.back() = count;
  const at::Tensor made = at::empty(shape, weight.options());
#ifdef DECODERS_BFLOAT16_PRODUCTS
  if (weight.scalar_type() == at::kBFloat16 && multiplies_bfloat16()) {
    const at::Tensor given = x.contiguous();
    const auto* from = given.const_data_ptr<at::BFloat16>();
    const auto* w = weight.const_data_ptr<at::BFloat16>();
    multiply(rows, from, w, made.mutable_data_ptr<at::BFloat16>(), width, count);
    return made;
  }
#endif
  const at::Tensor given = x.to(at::kFloat).contiguous();
  const float* from = given.const_data_ptr<float>();
  const auto run = [&]<typename T>(const T* w) {
    multiply(rows, from, w, made.mutable_data_ptr<T>(), width, count);
  };
  if (by_lines)
    multiply_lines(
        rows, from, weight.const_data_ptr<float>(), made.mutable_data_ptr<float>(), width, count);
  else if (weight.scalar_type() == at::kFloat)
    run(weight.const_data_ptr<float>());
  else if (weight.scalar_type() == at::kHalf)
    run(weight.const_data_ptr<at::Half>());
  else
    run(weight.const_data_ptr<at::BFloat16>());
  return made;
}

}  // namespace

TORCH_LIBRARY(decoders, library) {
  library.def("product(Tensor x, Tensor weight, int few) -> Tensor");
}
TORCH_LIBRARY_IMPL(decoders, CPU, library) { library.impl("product", product); }
