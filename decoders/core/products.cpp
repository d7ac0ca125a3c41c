// Products of rows with a weight, which is read from memory once and multiplied with all of them,
// and attention of rows to a cache.
//
// * [out, in] (half precision; a head tied to the embedding): four columns at a time, widened to
//   float32, or in bfloat16 on processors that multiply bfloat16 (AVX512-BF16).
// * [in, out] (float32): panels of vectors of columns, which need no sums over lanes.
// * attention (bfloat16): `attend`, below.
//
// A row's sums do not depend on the other rows.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#if defined(CPU_CAPABILITY_AVX512) && (__GNUC__ >= 11 || __clang_major__ >= 9)
#include <immintrin.h>
#define DECODERS_BFLOAT16_PRODUCTS
#endif

namespace {

using Wide = at::vec::Vectorized<float>;

constexpr int kColumns = 4;       // columns (weights [in]) read at a time
constexpr int kRows = 6;          // rows read at a time: kRows * kColumns sums fit into registers
constexpr int64_t kGrain = 16;    // fewest groups of kColumns columns per thread
constexpr int64_t kPanel = 96;    // rows in bfloat16 that stay in the second cache
constexpr int64_t kAhead = 8;     // lines of a panel that are prefetched
// Groups of columns prefetched ahead, into the second cache: it waits for more lines at a time than
// the first, which gave 21 GB/s instead of 34 on an AMD EPYC (docs/log.md).
constexpr int64_t kGroupsAhead = 3;
constexpr int64_t kMany = 64;     // as many rows as `_MANY` in products.py
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

// More numbers of rows and of columns: x[rows, depth] and w[columns, depth], in bfloat16. Rows from
// `first` to `end` have them, others have zeros.
struct Extra {
  const at::BFloat16* x = nullptr;
  const at::BFloat16* w = nullptr;
  int64_t depth = 0, first = 0, end = 0;

  // Returns those of R rows from row `done` on and of columns from number n on.
  Extra of(int64_t done, int R, int64_t n) const {
    if (done >= end || done + R <= first) return {};
    return {x + done * depth, w + n * depth, depth};
  }
};

// Multiplies x[R, width] by w[C, width] into out[R, stride]; rounds each sum once.
template <typename T, int R, int C>
void block(
    const float* x, const T* w, T* out, int64_t width, int64_t stride, const Extra& /*extra*/) {
  Wide sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = Wide(0.f);
  for (int64_t k = 0; k < width; k += 2 * Wide::size()) {
    Wide low[C], high[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + (kGroupsAhead * C + c) * width + k, 0, 2);
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

// Adds products of x[R, width] and w[C, width] to sums.
template <int R, int C>
__attribute__((target("avx512bf16,avx512vl"))) inline void accumulate(
    __m512 (&sums)[R][C], const at::BFloat16* x, const at::BFloat16* w, int64_t width) {
  for (int64_t k = 0; k < width; k += 2 * Wide::size()) {
    __m512bh columns[C];
    for (int c = 0; c < C; c++) {
      __builtin_prefetch(w + (kGroupsAhead * C + c) * width + k, 0, 2);
      columns[c] = (__m512bh)_mm512_loadu_si512(w + c * width + k);
    }
    for (int r = 0; r < R; r++) {
      const __m512bh row = (__m512bh)_mm512_loadu_si512(x + r * width + k);
      for (int c = 0; c < C; c++) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], row, columns[c]);
    }
  }
}

// The same for rows in bfloat16, without widening: twice as many products at a time.
template <typename T, int R, int C>
__attribute__((target("avx512bf16,avx512vl"))) void block(
    const at::BFloat16* x, const T* w, T* out, int64_t width, int64_t stride, const Extra& extra) {
  __m512 sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = _mm512_setzero_ps();
  accumulate<R, C>(sums, x, w, width);
  accumulate<R, C>(sums, extra.x, extra.w, extra.depth);
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
  static const bool is_there = __builtin_cpu_supports("avx512bf16");
  return is_there;
}
#endif

// Calls run<number>() for a number from 1 to N.
template <int N, typename F>
void with_number(int64_t number, const F& run) {
  if (number == N) return run.template operator()<N>();
  if constexpr (N > 1) with_number<N - 1>(number, run);
}

// Calls run<R>(done) for blocks of at most kRows rows, about equally many each.
template <typename F>
void by_blocks(int64_t rows, const F& run) {
  for (int64_t done = 0, size; done < rows; done += size) {
    const int64_t blocks = (rows - done + kRows - 1) / kRows;
    size = (rows - done + blocks - 1) / blocks;
    with_number<kRows>(size, [&]<int R>() { run.template operator()<R>(done); });
  }
}

// Multiplies rows by C columns from number n of `count` on.
template <typename T, int C, typename X>
void column(
    int64_t rows, const X* x, const T* w, T* out, int64_t width, int64_t count, int64_t n,
    const Extra& extra) {
  by_blocks(rows, [&]<int R>(int64_t done) {
    block<T, R, C>(
        x + done * width, w + n * width, out + done * count + n, width, count,
        extra.of(done, R, n));
  });
}

template <typename T, typename X>
void multiply(
    int64_t rows, const X* x, const T* w, T* out, int64_t width, int64_t count,
    const Extra& extra = {}) {
  const int64_t groups = (count + kColumns - 1) / kColumns;
  at::parallel_for(0, groups, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kColumns; n < std::min(end * kColumns, count); n += kColumns) {
      if (n + kColumns <= count) {
        column<T, kColumns>(rows, x, w, out, width, count, n, extra);
        continue;
      }
      for (int64_t last = n; last < count; last++)
        column<T, 1>(rows, x, w, out, width, count, last, extra);
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

constexpr int max_vectors(int rows) { return std::min(8, kSums / rows); }

// The same for any number of columns (`count`).
template <int R>
void strip(
    const float* x, const float* w, float* out, int64_t depth, int64_t stride, int64_t count) {
  constexpr int64_t size = Wide::size();
  for (int64_t whole = count / size; whole > 0;) {  // panels of about equal width
    const int64_t panels = (whole + max_vectors(R) - 1) / max_vectors(R);
    const int64_t vectors = (whole + panels - 1) / panels;
    with_number<max_vectors(R)>(
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
    const int64_t step = rows > kRows ? max_vectors(kRows) : end - begin;
    for (int64_t at = begin; at < end; at += step) {
      const int64_t width = std::min(std::min(at + step, end) * size, count) - at * size;
      by_blocks(rows, [&]<int R>(int64_t done) {
        float* to = out + done * count + at * size;
        strip<R>(x + done * depth, w + at * size, to, depth, count, width);
      });
    }
  });
}

#ifdef DECODERS_BFLOAT16_PRODUCTS
constexpr int64_t kEntries = 64;      // cache entries of one unit of attention
constexpr int kLanes = 4;             // vectors of kEntries sums
constexpr int64_t kMaxDepth = 256;     // most numbers of a key
constexpr uint16_t kUnseen = 0xff7f;  // the lowest finite bfloat16, which masks add
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Multiplies rows x[R, 2 depth] by packed weights w[depth, kEntries, 2] into out[R, kEntries], or
// adds to it.
template <int R>
__attribute__((target("avx512bf16,avx512vl"))) void pairs(
    const at::BFloat16* x, int64_t x_stride, const at::BFloat16* w, int64_t w_stride, float* out,
    int64_t out_stride, int64_t depth, bool adds = false) {
  __m512 sums[R][kLanes];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < kLanes; c++)
      sums[r][c] = adds ? _mm512_loadu_ps(out + r * out_stride + 16 * c) : _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k++, w += w_stride) {
    __m512bh columns[kLanes];
    for (int c = 0; c < kLanes; c++) columns[c] = (__m512bh)_mm512_loadu_si512(w + 32 * c);
    for (int r = 0; r < R; r++) {
      int pair;
      std::memcpy(&pair, x + r * x_stride + 2 * k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      for (int c = 0; c < kLanes; c++) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], both, columns[c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < kLanes; c++) _mm512_storeu_ps(out + r * out_stride + 16 * c, sums[r][c]);
}

// Packs keys [count, depth] as [depth / 2, kEntries, 2]: transposes squares of 16 pairs. Leaves
// entries undefined from `count` on.
void pack_keys(const at::BFloat16* k, at::BFloat16* packed, int64_t count, int64_t depth) {
  const auto pd = [](__m512 x) { return _mm512_castps_pd(x); };
  const auto ps = [](__m512d x) { return _mm512_castpd_ps(x); };
  for (int64_t e = 0; e < count; e += 16)
    for (int64_t d = 0; d < depth; d += 32) {
      __m512 a[16], b[16];
      for (int n = 0; n < 16; n++)
        a[n] = _mm512_loadu_ps(k + std::min(e + n, count - 1) * depth + d);
      for (int n = 0; n < 16; n += 2) {
        b[n] = _mm512_unpacklo_ps(a[n], a[n + 1]);
        b[n + 1] = _mm512_unpackhi_ps(a[n], a[n + 1]);
      }
      for (int n = 0; n < 16; n += 4)
        for (int half = 0; half < 2; half++) {
          a[n + 2 * half] = ps(_mm512_unpacklo_pd(pd(b[n + half]), pd(b[n + 2 + half])));
          a[n + 2 * half + 1] = ps(_mm512_unpackhi_pd(pd(b[n + half]), pd(b[n + 2 + half])));
        }
      for (int n = 0; n < 4; n++)  // pairs n, n + 4, n + 8 and n + 12 of entries 0 to 3, 4 to 7, …
        for (int half = 0; half < 2; half++) {
          b[n + 8 * half] = _mm512_shuffle_f32x4(a[n + 8 * half], a[n + 8 * half + 4], 0x88);
          b[n + 8 * half + 4] = _mm512_shuffle_f32x4(a[n + 8 * half], a[n + 8 * half + 4], 0xdd);
        }
      for (int n = 0; n < 8; n++) {
        at::BFloat16* to = packed + (d / 2 + n) * 2 * kEntries + 2 * e;
        _mm512_storeu_ps(to, _mm512_shuffle_f32x4(b[n], b[n + 8], 0x88));
        _mm512_storeu_ps(to + 8 * 2 * kEntries, _mm512_shuffle_f32x4(b[n], b[n + 8], 0xdd));
      }
    }
}

// Packs values [count, depth] as [count / 2, depth, 2]; a last one is paired with zeros.
__attribute__((target("avx512bw"))) void pack_values(
    const at::BFloat16* v, at::BFloat16* packed, int64_t count, int64_t depth) {
  alignas(64) static const auto order = [] {
    std::array<int16_t, 64> lanes;
    for (int n = 0; n < 64; n++) lanes[n] = n / 2 + n % 2 * 32;
    return lanes;
  }();
  const __m512i low = _mm512_load_si512(order.data()), high = _mm512_load_si512(order.data() + 32);
  for (int64_t e = 0; e < count; e += 2)
    for (int64_t d = 0; d < depth; d += 32) {
      const __m512i first = _mm512_loadu_si512(v + e * depth + d);
      const __m512i second =
          e + 1 < count ? _mm512_loadu_si512(v + (e + 1) * depth + d) : _mm512_setzero_si512();
      at::BFloat16* to = packed + e * depth + 2 * d;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, low, second));
      _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(first, high, second));
    }
}

// Returns 2^x for x up to 0; zero below -149.
inline __m512 power_of_two(__m512 x) {
  const __m512 exponent = _mm512_max_ps(x, _mm512_set1_ps(-200.f));
  const __m512 whole =
      _mm512_roundscale_ps(exponent, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(exponent, whole);
  __m512 sum = _mm512_set1_ps(0.0013333558f);  // ln(2)^n / n!
  for (const float term : {0.0096181291f, 0.0555041087f, 0.2402265070f, 0.6931471806f, 1.f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
  return _mm512_scalef_ps(sum, whole);
}

// Turns scores[kEntries] into weights exp(score * scale + mask - peak); stores `peak`, the largest
// exponent, and the sum of the weights. Entries from `count` on have no weight.
__attribute__((target("avx512bf16,avx512vl"))) void weigh(
    const float* scores, const at::BFloat16* mask, float scale, int64_t count,
    at::BFloat16* weights, float* peak_and_sum) {
  __m512 exponents[kLanes];
  for (int c = 0; c < kLanes; c++) {
    const auto left = std::clamp<int64_t>(count - 16 * c, 0, 16);
    const auto is_entry = static_cast<__mmask16>((1u << left) - 1);
    const __m256i added = _mm256_maskz_loadu_epi16(is_entry, mask + 16 * c);
    const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(added), 16));
    const __m512 score = _mm512_loadu_ps(scores + 16 * c);
    exponents[c] = _mm512_mask_blend_ps(
        is_entry, _mm512_set1_ps(kLowest), _mm512_fmadd_ps(score, _mm512_set1_ps(scale), wide));
  }
  const float peak = _mm512_reduce_max_ps(_mm512_max_ps(
      _mm512_max_ps(exponents[0], exponents[1]), _mm512_max_ps(exponents[2], exponents[3])));
  for (int c = 0; c < kLanes; c++)
    exponents[c] = power_of_two(_mm512_mul_ps(
        _mm512_sub_ps(exponents[c], _mm512_set1_ps(peak)), _mm512_set1_ps(1.4426950409f)));
  for (int c = 0; c < kLanes; c += 2)
    _mm512_storeu_si512(
        weights + 16 * c, (__m512i)_mm512_cvtne2ps_pbh(exponents[c + 1], exponents[c]));
  peak_and_sum[0] = peak;
  peak_and_sum[1] = _mm512_reduce_add_ps(_mm512_add_ps(
      _mm512_add_ps(exponents[0], exponents[1]), _mm512_add_ps(exponents[2], exponents[3])));
}

bool is_seen(at::BFloat16 mask) { return mask.x != kUnseen; }

// Rows of one key-value head from number `first` on. Queries and results are strides apart; masks
// are `mask_stride` apart and repeat after `num_masks` rows.
struct Rows {
  const at::BFloat16* q;
  const at::BFloat16* mask;
  float* out;  // [depth + 2]: sums of weighted values, the largest exponent, the sum of weights
  int64_t first, number, q_stride, mask_stride, num_masks, out_stride;

  const at::BFloat16* mask_at(int64_t row) const {
    return mask + (first + row) % num_masks * mask_stride;
  }

  void set_empty(int64_t row, int64_t depth) const {
    float* empty = out + row * out_stride;
    std::fill(empty, empty + depth + 2, 0.f);
    empty[depth] = kLowest;
  }
};

// The entries that a row of a tree sees from a unit on, in the order of its branch.
struct Branch {
  int64_t unit;
  std::vector<int64_t> entries;  // empty if the row sees one span of entries, as without a tree

  bool reads(int64_t from) const { return !entries.empty() && unit <= from; }
};

Branch find_branch(const at::BFloat16* mask, int64_t num_entries) {
  const at::BFloat16* end = mask + num_entries;
  const at::BFloat16* hole = std::find_if_not(std::find_if(mask, end, is_seen), end, is_seen);
  if (std::none_of(hole, end, is_seen)) return {};
  Branch branch{(hole - mask) / kEntries, {}};
  for (int64_t e = branch.unit * kEntries; e < num_entries; e++)
    if (mask + e < hole || is_seen(mask[e])) branch.entries.push_back(e);
  return branch;
}

// Scores [rows, kEntries], `stride` apart, and packed values of a unit, for rows of a tree.
struct Scratch {
  float* scores;
  at::BFloat16* values;
  int64_t stride;
  const Branch* branches;  // of each mask
  int64_t unit;
};

// Lets rows attend to `count` keys and values of a unit; keeps scores and values in a scratch.
void attend_unit(
    const Rows& rows, const at::BFloat16* k, const at::BFloat16* v, float scale, int64_t count,
    int64_t depth, const Scratch* scratch) {
  alignas(64) at::BFloat16 keys[kEntries * kMaxDepth], unshared[kEntries * kMaxDepth];
  at::BFloat16* values = scratch ? scratch->values : unshared;
  for (int64_t n = 0; n < count * depth; n += 32) {
    __builtin_prefetch(v + n, 0, 2);
    __builtin_prefetch(k + kEntries * depth + n, 0, 2);
  }
  pack_keys(k, keys, count, depth);
  pack_values(v, values, count, depth);
  by_blocks(rows.number, [&]<int R>(int64_t done) {
    alignas(64) float unshared_scores[R][kEntries];
    alignas(64) at::BFloat16 weights[R][kEntries];
    float* scores = scratch ? scratch->scores + done * scratch->stride : unshared_scores[0];
    const int64_t stride = scratch ? scratch->stride : kEntries;
    int first = 0;  // the first row that sees an entry
    for (; first < R; first++) {
      const at::BFloat16* mask = rows.mask_at(done + first);
      if (std::any_of(mask, mask + count, is_seen)) break;
    }
    if (first == R) {
      for (int r = 0; r < R; r++) rows.set_empty(done + r, depth);
      return;
    }
    pairs<R>(
        rows.q + done * rows.q_stride, rows.q_stride, keys, 2 * kEntries, scores, stride,
        depth / 2);
    const auto reads_branch = [&](int64_t row) {
      return scratch->branches[(rows.first + row) % rows.num_masks].reads(scratch->unit);
    };
    int waiting = 0;  // rows that read this unit as a part of their branch
    while (scratch && waiting < R && reads_branch(done + waiting)) waiting++;
    if (waiting == R) return;
    float* out = rows.out + done * rows.out_stride;
    for (int r = 0; r < R; r++)
      weigh(
          scores + r * stride, rows.mask_at(done + r), scale, count, weights[r],
          out + r * rows.out_stride + depth);
    for (int64_t d = 0; d < depth; d += kEntries)
      pairs<R>(
          weights[0], kEntries, values + 2 * d, 2 * depth, out + d, rows.out_stride,
          (count + 1) / 2);
  });
}

// Lets rows with one mask attend to entries of their branch, unit by unit; units up to `num_units`
// remain empty. Values that are packed in the same order, those before the first gap, are reused.
void attend_branch(
    const Rows& rows, const Branch& branch, const at::BFloat16* v, float scale, int64_t depth,
    int64_t num_units, int64_t unit_stride, const Scratch& scratch, int64_t first_entry) {
  alignas(64) at::BFloat16 values[kEntries * kMaxDepth], gathered[kEntries * kMaxDepth];
  at::BFloat16 mask[kEntries];
  const int64_t begin = branch.unit * kEntries, length = branch.entries.size();
  for (int64_t u = 0; u < num_units; u++) {
    Rows part = rows;
    part.out += u * unit_stride;
    const int64_t* entries = branch.entries.data() + u * kEntries;
    const int64_t count = std::clamp<int64_t>(length - u * kEntries, 0, kEntries);
    if (!count) {
      for (int64_t r = 0; r < part.number; r++) part.set_empty(r, depth);
      continue;
    }
    int64_t same = 0;  // entries in whole pairs that stand where the unit has them
    while (same + 2 <= count && entries[same + 1] == begin + u * kEntries + same + 1) same += 2;
    for (int64_t n = 0; n < count; n++) mask[n] = rows.mask[entries[n]];
    for (int64_t n = same; n < count; n++)
      std::copy_n(v + entries[n] * depth, depth, gathered + (n - same) * depth);
    pack_values(gathered, values, count - same, depth);
    const at::BFloat16* packed = scratch.values + (begin - first_entry + u * kEntries) * depth;
    by_blocks(part.number, [&]<int R>(int64_t done) {
      alignas(64) float scores[R][kEntries];
      alignas(64) at::BFloat16 weights[R][kEntries];
      float* out = part.out + done * part.out_stride;
      for (int r = 0; r < R; r++) {
        const float* line = scratch.scores + (done + r) * scratch.stride;
        for (int64_t n = 0; n < count; n++) scores[r][n] = line[entries[n] - first_entry];
        weigh(scores[r], mask, scale, count, weights[r], out + r * part.out_stride + depth);
      }
      for (int64_t d = 0; d < depth; d += kEntries) {
        pairs<R>(
            weights[0], kEntries, packed + 2 * d, 2 * depth, out + d, part.out_stride, same / 2);
        pairs<R>(
            weights[0] + same, kEntries, values + 2 * d, 2 * depth, out + d, part.out_stride,
            (count - same + 1) / 2, true);
      }
    });
  }
}

// Joins what `units` units have for a row: `parts` are `stride` numbers apart, and are changed.
void join(float* part, int64_t units, int64_t stride, int64_t depth, at::BFloat16* out) {
  using Half = at::vec::Vectorized<at::BFloat16>;
  constexpr int64_t size = Wide::size();
  float peak = part[depth], sum = 0;
  for (int64_t u = 1; u < units; u++) peak = std::max(peak, part[u * stride + depth]);
  for (int64_t u = 0; u < units; u++) {
    float* unit = part + u * stride;
    unit[depth] = std::exp(unit[depth] - peak);
    sum += unit[depth] * unit[depth + 1];
  }
  for (int64_t d = 0; d < depth; d += Half::size()) {
    Wide low(0.f), high(0.f);
    for (int64_t u = 0; u < units; u++) {
      const float* unit = part + u * stride;
      const Wide share(unit[depth] / sum);
      low = at::vec::fmadd(Wide::loadu(unit + d), share, low);
      high = at::vec::fmadd(Wide::loadu(unit + d + size), share, high);
    }
    at::vec::convert_from_float<at::BFloat16>(low, high).store(out + d);
  }
}
#endif

// Attention of q [B, K, G N, D] to k and v [B, K, T, D] with a mask [1 or B, 1, N, T], which is
// added, or is true for entries that a row sees. Entries are read in units. A row's sums depend on
// no other row, nor on entries it does not see: rows of a tree read the entries of their branch as
// if there were no others.
at::Tensor attend(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
    double scale) {
  const int64_t batch = q.size(0), heads = q.size(1), rows = q.size(2), depth = q.size(3);
  const int64_t entries = k.size(2), length = mask.size(2);
#ifdef DECODERS_BFLOAT16_PRODUCTS
  const auto fits = [&](const at::Tensor& x) { return x.stride(3) == 1 && x.stride(2) == depth; };
  if (q.scalar_type() == at::kBFloat16 && multiplies_bfloat16() && depth % kEntries == 0 &&
      depth <= kMaxDepth && fits(k) && fits(v)) {
    const at::Tensor queries = q.contiguous(), result = at::empty(q.sizes(), q.options());
    at::Tensor added = mask;
    if (mask.scalar_type() == at::kBool)
      added = at::zeros(mask.sizes(), q.options())
                  .masked_fill_(mask.logical_not(), std::numeric_limits<at::BFloat16>::lowest());
    added = added.expand({batch, 1, length, entries}).contiguous();
    const auto* masks = added.const_data_ptr<at::BFloat16>();
    const auto* from = queries.const_data_ptr<at::BFloat16>();
    const auto factor = static_cast<float>(scale);
    const int64_t units = (entries + kEntries - 1) / kEntries, out_stride = depth + 2;
    std::vector<Branch> branches(batch * length);
    at::parallel_for(0, batch * length, kPanel, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; n++) branches[n] = find_branch(masks + n * entries, entries);
    });
    int64_t tree_unit = units;  // the first unit of which rows read a branch
    for (const Branch& branch : branches)
      if (branch.reads(units)) tree_unit = std::min(tree_unit, branch.unit);
    const bool has_trees = tree_unit < units;
    // parts of many rows would not stay in a cache
    const int64_t max_rows = has_trees ? rows : std::min(rows, 4 * kPanel);
    const std::unique_ptr<float[]> parts(new float[batch * heads * units * max_rows * out_stride]);
    const int64_t tree_first = tree_unit * kEntries, tree_entries = units * kEntries - tree_first;
    const std::unique_ptr<float[]> tree_scores(new float[batch * heads * max_rows * tree_entries]);
    const std::unique_ptr<at::BFloat16[]> tree_values(
        new at::BFloat16[batch * heads * tree_entries * depth]);
    const auto scratch_at = [&](int64_t b, int64_t h, int64_t entry) {
      return Scratch{
          tree_scores.get() + (b * heads + h) * max_rows * tree_entries + entry - tree_first,
          tree_values.get() + ((b * heads + h) * tree_entries + entry - tree_first) * depth,
          tree_entries, branches.data() + b * length, entry / kEntries};
    };
    const auto at_entry = [&](const at::Tensor& x, int64_t b, int64_t h, int64_t entry) {
      return x.const_data_ptr<at::BFloat16>() + b * x.stride(0) + h * x.stride(1) + entry * depth;
    };
    for (int64_t first = 0; first < rows; first += max_rows) {
      const int64_t num = std::min(max_rows, rows - first), unit_stride = num * out_stride;
      const auto rows_at = [&](int64_t b, int64_t h, int64_t unit) {
        return Rows{
            from + ((b * heads + h) * rows + first) * depth, masks + b * length * entries,
            parts.get() + ((b * heads + h) * units + unit) * unit_stride,
            first, num, depth, entries, length, out_stride};
      };
      at::parallel_for(0, batch * heads * units, 1, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n++) {
          const int64_t b = n / units / heads, h = n / units % heads, entry = n % units * kEntries;
          Rows all = rows_at(b, h, n % units);
          all.mask += entry;
          const bool is_in_tree = entry >= tree_first;
          const Scratch scratch = is_in_tree ? scratch_at(b, h, entry) : Scratch{};
          attend_unit(
              all, at_entry(k, b, h, entry), at_entry(v, b, h, entry), factor,
              std::min(kEntries, entries - entry), depth, is_in_tree ? &scratch : nullptr);
        }
      });
      if (has_trees)
        at::parallel_for(0, batch * heads * length, 1, [&](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; n++) {
            const int64_t b = n / length / heads, h = n / length % heads, row = n % length;
            const Branch& branch = branches[b * length + row];
            if (!branch.reads(units)) continue;
            Rows path = rows_at(b, h, branch.unit);
            path.q += row * depth, path.mask += row * entries, path.out += row * out_stride;
            path.number = rows / length, path.q_stride *= length, path.out_stride *= length;
            Scratch scratch = scratch_at(b, h, tree_first);
            scratch.scores += row * scratch.stride, scratch.stride *= length;
            attend_branch(
                path, branch, at_entry(v, b, h, 0), factor, depth, units - branch.unit, unit_stride,
                scratch, tree_first);
          }
        });
      auto* out = result.mutable_data_ptr<at::BFloat16>();
      at::parallel_for(0, batch * heads * num, kEntries, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n++) {
          const int64_t head = n / num, row = n % num;
          float* part = parts.get() + head * units * unit_stride + row * out_stride;
          join(part, units, unit_stride, depth, out + (head * rows + first + row) * depth);
        }
      });
    }
    return result;
  }
#endif
  const at::Tensor each = mask.repeat({1, 1, rows / length, 1});
  // graphs read a result in the layout of its sizes; the library's has the layout of q
  return at::scaled_dot_product_attention(q, k, v, each, 0.0, false, scale).contiguous();
}

#ifdef DECODERS_BFLOAT16_PRODUCTS
// Multiplies rows of bfloat16 by w[count, width], panel by panel.
void multiply_panels(
    int64_t rows, const at::BFloat16* x, const at::BFloat16* w, at::BFloat16* out, int64_t width,
    int64_t count, const Extra& extra = {}) {
  for (int64_t done = 0; done < rows; done += kPanel) {
    Extra left = extra;
    left.x += done * extra.depth, left.first -= done, left.end -= done;
    multiply(
        std::min(kPanel, rows - done), x + done * width, w, out + done * count, width, count, left);
  }
}
#endif

// Returns `few` and the rows of slots, whose gate is not zero, if our code is used for many rows:
// then a call's tokens alone decide, so that their bits are those of a call without slots.
int64_t few_beside_slots(int64_t few, const std::optional<at::Tensor>& gate) {
  if (few < kMany || !gate) return few;
  const at::Tensor open = gate->to(at::kFloat).contiguous();
  const float* first = open.const_data_ptr<float>();
  return few + std::count_if(first, first + open.numel(), [](float each) { return each != 0; });
}

// x [..., in] times weight [out, in]; uses the library above `few` rows or for other layouts. Rows
// whose gate [rows, 1] is not zero may come on top.
at::Tensor product(
    const at::Tensor& x, const at::Tensor& weight, int64_t few,
    const std::optional<at::Tensor>& gate = std::nullopt) {
  few = few_beside_slots(few, gate);
  const int64_t width = weight.size(1), count = weight.size(0);
  const int64_t rows = x.numel() / std::max<int64_t>(width, 1);
  const bool by_lines = weight.scalar_type() == at::kFloat && weight.t().is_contiguous();
  const bool is_long = weight.scalar_type() == at::kFloat && rows >= kLong;
  const bool by_columns = weight.is_contiguous() && width % (2 * Wide::size()) == 0 && !is_long;
  if (rows > few || !(by_lines || by_columns)) return at::linear(x, weight);
  auto shape = x.sizes().vec();
  shape.back() = count;
  const at::Tensor result = at::empty(shape, weight.options());
#ifdef DECODERS_BFLOAT16_PRODUCTS
  if (weight.scalar_type() == at::kBFloat16 && multiplies_bfloat16()) {
    const at::Tensor dense = x.contiguous();
    multiply_panels(
        rows, dense.const_data_ptr<at::BFloat16>(), weight.const_data_ptr<at::BFloat16>(),
        result.mutable_data_ptr<at::BFloat16>(), width, count);
    return result;
  }
#endif
  const at::Tensor dense = x.to(at::kFloat).contiguous();
  const float* from = dense.const_data_ptr<float>();
  const auto run = [&]<typename T>(const T* w) {
    multiply(rows, from, w, result.mutable_data_ptr<T>(), width, count);
  };
  if (by_lines)
    multiply_lines(
        rows, from, weight.const_data_ptr<float>(), result.mutable_data_ptr<float>(), width, count);
  else if (weight.scalar_type() == at::kFloat)
    run(weight.const_data_ptr<float>());
  else if (weight.scalar_type() == at::kHalf)
    run(weight.const_data_ptr<at::Half>());
  else
    run(weight.const_data_ptr<at::BFloat16>());
  return result;
}

// The same, plus x low high for rows whose gate [rows, 1] is not zero: low [rank, in] and high
// [out, rank]. In bfloat16, x low are more numbers of a row, and high are more of each column.
at::Tensor gated_product(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& low, const at::Tensor& high,
    const at::Tensor& gate, int64_t few) {
  few = few_beside_slots(few, gate);
#ifdef DECODERS_BFLOAT16_PRODUCTS
  const int64_t width = weight.size(1), count = weight.size(0), depth = low.size(0);
  const int64_t rows = x.numel() / width, size = 2 * Wide::size();
  const bool is_dense =
      weight.is_contiguous() && low.is_contiguous() && high.is_contiguous() && gate.is_contiguous();
  if (weight.scalar_type() == at::kBFloat16 && multiplies_bfloat16() && rows <= few && is_dense &&
      gate.scalar_type() == at::kFloat && width % size == 0 && depth % size == 0) {
    const float* open = gate.const_data_ptr<float>();
    const auto is_open = [](float value) { return value != 0; };
    const int64_t first = std::find_if(open, open + rows, is_open) - open;
    int64_t end = rows;
    while (end > first && !is_open(open[end - 1])) end--;
    auto shape = x.sizes().vec();
    shape.back() = count;
    const at::Tensor result = at::empty(shape, weight.options()), dense = x.contiguous();
    const auto* from = dense.const_data_ptr<at::BFloat16>();
    std::vector<at::BFloat16> more(rows * depth, 0.f);
    multiply_panels(
        end - first, from + first * width, low.const_data_ptr<at::BFloat16>(),
        more.data() + first * depth, width, depth);
    for (int64_t row = first; row < end; row++)
      if (!is_open(open[row])) std::fill_n(more.begin() + row * depth, depth, 0.f);
    multiply_panels(
        rows, from, weight.const_data_ptr<at::BFloat16>(), result.mutable_data_ptr<at::BFloat16>(),
        width, count, {more.data(), high.const_data_ptr<at::BFloat16>(), depth, first, end});
    return result;
  }
#endif
  auto shape = x.sizes().vec();
  shape.back() = 1;
  const at::Tensor added = product(product(x, low, few), high, few);
  return product(x, weight, few) + added * gate.to(x.scalar_type()).view(shape);
}

// x [..., in] times weight [out, in], or times `other` for rows whose gate [rows, 1] is not zero.
at::Tensor switched_product(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& other, const at::Tensor& gate,
    int64_t few) {
  const int64_t width = weight.size(1), rows = x.numel() / std::max<int64_t>(width, 1);
  const at::Tensor flat = x.reshape({rows, width}), open = gate.to(at::kFloat).contiguous();
  const float* is_open = open.const_data_ptr<float>();
  std::array<std::vector<int64_t>, 2> kinds;
  for (int64_t row = 0; row < rows; row++) kinds[is_open[row] != 0].push_back(row);
  for (int kind = 0; kind < 2; kind++)
    if (kinds[kind].empty()) return product(x, kind ? weight : other, few);
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor result = at::empty({rows, weight.size(0)}, weight.options());
  for (int kind = 0; kind < 2; kind++) {
    const auto& index = kinds[kind];
    const int64_t first = index.front(), count = static_cast<int64_t>(index.size());
    const at::Tensor& matrix = kind ? other : weight;
    if (index.back() - first + 1 == count) {
      result.narrow(0, first, count).copy_(product(flat.narrow(0, first, count), matrix, few));
    } else {
      const at::Tensor places = at::tensor(index);
      result.index_copy_(0, places, product(flat.index_select(0, places), matrix, few));
    }
  }
  return result.view(shape);
}

}  // namespace

TORCH_LIBRARY(decoders, library) {
  library.def("attend(Tensor q, Tensor k, Tensor v, Tensor mask, float scale) -> Tensor");
  library.def("product(Tensor x, Tensor weight, int few, Tensor? gate=None) -> Tensor");
  library.def(
      "switched_product(Tensor x, Tensor weight, Tensor other, Tensor gate, int few) -> Tensor");
  library.def(
      "gated_product(Tensor x, Tensor weight, Tensor low, Tensor high, Tensor gate, int few)"
      " -> Tensor");
}
TORCH_LIBRARY_IMPL(decoders, CPU, library) {
  library.impl("switched_product", switched_product);
  library.impl("attend", attend);
  library.impl("product", product);
  library.impl("gated_product", gated_product);
}
