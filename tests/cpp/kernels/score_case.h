// A random policy and a random cache row, with their scores in double: shared by score_test.cpp
// and score_bench.cpp.
#ifndef KVP_TESTS_SCORE_CASE_H
#define KVP_TESTS_SCORE_CASE_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "cpu/score.h"

namespace kvp::test {

inline float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

inline float bfloat_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Elements of one of the cache's dtypes, one byte off any alignment.
class Elements {
 public:
  Elements(kvp_dtype dtype, size_t n)
      : dtype_(dtype), bytes_(1 + n * (dtype == KVP_FLOAT32 ? 4 : 2)) {}

  const void* data() const { return bytes_.data() + 1; }

  double get(int64_t i) const {
    if (dtype_ == KVP_FLOAT32) {
      float value;
      std::memcpy(&value, &bytes_[1 + 4 * i], 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, &bytes_[1 + 2 * i], 2);
    return dtype_ == KVP_FLOAT16 ? half_to_float(bits) : bfloat_to_float(bits);
  }

  // Rounds towards zero, flushing what fp16 holds as a subnormal: any element will do.
  void set(int64_t i, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype_ == KVP_FLOAT32) {
      std::memcpy(&bytes_[1 + 4 * i], &value, 4);
      return;
    }
    uint16_t narrow = static_cast<uint16_t>(bits >> 16);
    if (dtype_ == KVP_FLOAT16) {
      const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
      const uint32_t sign = bits >> 16 & 0x8000, mantissa = bits >> 13 & 1023;
      if (std::isnan(value)) {
        narrow = 0x7e00;
      } else if (exponent >= 31) {
        narrow = static_cast<uint16_t>(sign | 0x7c00);
      } else {
        narrow = static_cast<uint16_t>(
            exponent <= 0 ? sign : sign | static_cast<uint32_t>(exponent) << 10 | mantissa);
      }
    }
    std::memcpy(&bytes_[1 + 2 * i], &narrow, 2);
  }

 private:
  kvp_dtype dtype_;
  std::vector<unsigned char> bytes_;
};

struct FreeAligned {
  void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
};

// The policy of one (layer, head): tensors as the file holds them, and packed.
struct RandomPolicy {
  RandomPolicy(const kvp_policy_shape& shape, std::mt19937& random)
      : shape(shape),
        packed(static_cast<float*>(
            ::operator new(sizeof(float) * static_cast<size_t>(PackedLayout(shape).floats),
                           std::align_val_t{64}))),
        positions(static_cast<size_t>(shape.position_rows) * shape.position_dim) {
    std::normal_distribution<float> normal;
    const PackedLayout layout(shape);
    std::fill(packed.get(), packed.get() + layout.floats, 0.0f);
    for_each_policy_tensor(
        shape, [&](const char* name, int64_t PackedLayout::* offset, int32_t rows, int32_t cols) {
          std::vector<float>& tensor = tensors[name];
          const bool triangular = std::string(name).starts_with("gain") && cols != 0;
          const bool norm_weight = std::string(name).starts_with("norm") && cols == 0;
          const bool offsets = std::string(name).ends_with("offset");
          for (int32_t r = 0; r < rows; ++r) {
            for (int32_t c = 0; c < (cols == 0 ? 1 : cols); ++c) {
              float value = normal(random) / std::sqrt(static_cast<float>(cols == 0 ? 1 : cols));
              if (triangular && c < r) value = 0;
              if (norm_weight) value = 1 + 0.1f * value;
              if (offsets) value = 0.1f + value * value;
              tensor.push_back(value);
              packed[layout.*offset + (cols == 0 ? r : panel_index(r, c, cols))] = value;
            }
          }
        });
    for (float& p : positions) p = normal(random);
  }

  // Score of one entry in double, and the magnitude of the terms it sums.
  double score(const std::vector<double>& k, const std::vector<double>& v, int64_t pos,
               double* magnitude) const {
    const int hidden = shape.hidden;
    const bool gains = shape.flags & KVP_POLICY_GAINS, norms = shape.flags & KVP_POLICY_NORMS;
    const auto affine = [&](const std::vector<float>& w, const std::vector<double>& x,
                            int outputs) {
      std::vector<double> y(outputs);
      for (int i = 0; i < outputs; ++i) {
        for (size_t j = 0; j < x.size(); ++j) y[i] += double{w[i * x.size() + j]} * x[j];
      }
      return y;
    };
    const auto gain = [&](const std::string& name, const std::vector<double>& x) {
      double squares = tensors.at(name + ".offset")[0];
      const std::vector<double> y =
          affine(tensors.at(name + ".weight"), x, static_cast<int>(x.size()));
      for (size_t i = 0; i < y.size(); ++i)
        squares += std::pow(y[i] + tensors.at(name + ".bias")[i], 2);
      return 1 / std::sqrt(squares);
    };
    const auto activate = [&](std::vector<double> z, const std::string& norm) {
      double squares = 0;
      for (double x : z) squares += x * x;
      const double scale = 1 / std::sqrt(squares / hidden + double{shape.norm_eps});
      for (int i = 0; i < hidden; ++i) {
        if (norms)
          z[i] = z[i] * scale * tensors.at(norm + ".weight")[i] + tensors.at(norm + ".bias")[i];
        z[i] = z[i] / (1 + std::exp(-z[i]));
      }
      return z;
    };

    const double gain_k = gains ? gain("gain_k", k) : 1, gain_v = gains ? gain("gain_v", v) : 1;
    std::vector<double> x;
    for (double c : k) x.push_back(gain_k * c);
    for (double c : v) x.push_back(gain_v * c);
    const int64_t row = std::min<int64_t>(std::max<int64_t>(pos, 0), shape.position_rows - 1);
    for (int f = 0; f < shape.position_dim; ++f)
      x.push_back(positions[row * shape.position_dim + f]);

    std::vector<double> z = affine(tensors.at("input.weight"), x, hidden);
    for (int i = 0; i < hidden; ++i) {
      z[i] += tensors.at("input.bias")[i];
      if (gains)
        z[i] += gain_k * tensors.at("input.gain_k")[i] + gain_v * tensors.at("input.gain_v")[i];
    }
    z = affine(tensors.at("hidden.weight"), activate(z, "norm1"), hidden);
    for (int i = 0; i < hidden; ++i) z[i] += tensors.at("hidden.bias")[i];
    z = activate(z, "norm2");
    double score = tensors.at("output.bias")[0];
    *magnitude = std::abs(score);
    for (int i = 0; i < hidden; ++i) {
      const double term = tensors.at("output.weight")[i] * z[i];
      score += term;
      *magnitude += std::abs(term);
    }
    return score;
  }

  // Multiply-adds of one entry that the formula needs, counting the triangles as triangles.
  int64_t multiply_adds() const {
    const int64_t k = shape.head_dim_k, v = shape.head_dim_v, h = shape.hidden;
    const int64_t gains = shape.flags & KVP_POLICY_GAINS ? (k * (k + 1) + v * (v + 1)) / 2 : 0;
    return gains + h * (k + v + shape.position_dim) + h * h + h;
  }

  kvp_policy_shape shape;
  std::map<std::string, std::vector<float>> tensors;
  std::unique_ptr<float[], FreeAligned> packed;
  std::vector<float> positions;
};

}  // namespace kvp::test

#endif  // KVP_TESTS_SCORE_CASE_H
