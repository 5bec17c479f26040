// The kernels of block_kernels.inc as TensorFlow operations, for CPUs. bert_tf/model/blocks.py
// shows what each one computes, in plain TensorFlow. Sums over rows are taken over blocks of a
// fixed size, which are added in order, so that results never depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace bert_tf {

struct Bfloat16 {
  uint16_t bits;
};

// Which place (a position of an example) each row of a micro batch has, and which row is in each
// place; places of padding may have no row.
struct Places {
  int64_t positions;      // per example
  const int32_t* of_row;  // place of each row: example * positions + position
  const int32_t* row_of;  // row in each place, -1 if there is none
};

// What a micro batch's dropout masks are drawn from.
struct Draw {
  uint64_t key, low, high;
  uint16_t threshold;  // out of 2**16; random numbers below it drop their element
  float scale;         // of the elements that are kept
};

template <class T>
struct GeluArgs {
  int64_t width;
  bool exact;  // rather than the tanh form
  const T* product;
  const float* bias;
  T* y;
  const T* dy;
  T* dproduct;
};

template <class T>
struct NormArgs {
  int64_t width;
  Places places;
  Draw draw;
  const T* product;
  const float *bias, *residual, *gamma, *beta;
  float* y;
  T* half;
  float* stats;  // mean and 1 / standard deviation of each row
  const float* dy;
  const T* dhalf;
  T* dproduct;
  float* dresidual;
};

template <class T>
struct SoftmaxArgs {
  int64_t width, rows_of_an_example;
  Draw draw;
  const T* scores;
  const float* bias;  // a row for each example
  T *probabilities, *dropped;
  const T* ddropped;
  T* dscores;
};

template <class T>
struct LossArgs {
  int64_t rows, classes;
  const T* product;
  const float* bias;
  const int32_t* labels;
  float* losses;
  int32_t* best;
  float* log_totals;  // log-sum-exp of each row
  const float* dlosses;
  T* dproduct;
  float* dbias;
};

template <class T>
struct DivergenceArgs {
  int64_t rows, classes;
  float scale;  // of the scores: 1 / temperature
  const T* product;
  const float* bias;
  const T* known_product;
  const float* known_bias;
  float* losses;
  float *log_totals, *known_log_totals;  // log-sum-exp of each row
  const float* dlosses;
  T* dproduct;
  float* dbias;
};

template <class T>
struct HeadsArgs {
  int64_t heads, size;
  Places places;
  float scale;
  const T* joined;
  const float* bias;
  T* parts[3];
  const T* given[3];
  T* djoined;
  const T* given_rows;
  T* rows;

  int64_t width() const { return heads * size; }

  // Offset of a place's first head in [B, N, S, H]; the next one is `stride()` further on.
  int64_t FirstOf(int64_t place) const {
    const int64_t example = place / places.positions, position = place % places.positions;
    return (example * heads * places.positions + position) * size;
  }

  int64_t stride() const { return places.positions * size; }
};

namespace generic {
#include "simd.inc"
#include "block_kernels.inc"
}  // namespace generic

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define BERT_TF_AVX2
namespace avx2 {
#include "simd.inc"
#include "block_kernels.inc"
}  // namespace avx2
#undef BERT_TF_AVX2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define BERT_TF_AVX512
namespace avx512 {
#include "simd.inc"
#include "block_kernels.inc"
}  // namespace avx512
#pragma GCC pop_options

#if __GNUC__ >= 10
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define BERT_TF_AVX512_BF16
namespace avx512_bf16 {
#include "simd.inc"
#include "block_kernels.inc"
}  // namespace avx512_bf16
#undef BERT_TF_AVX512_BF16
#pragma GCC pop_options
#else
namespace avx512_bf16 = avx512;
#endif
#undef BERT_TF_AVX512

enum class Instructions { kGeneric, kAvx2, kAvx512, kAvx512Bf16 };

Instructions Found() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return Instructions::kGeneric;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Instructions::kAvx2;
  }
#if __GNUC__ >= 10
  if (__builtin_cpu_supports("avx512bf16")) return Instructions::kAvx512Bf16;
#endif
  return Instructions::kAvx512;
}

// The best set of this CPU, or a lesser one if BERT_TF_INSTRUCTIONS is avx512, avx2 or generic. All
// give the same bits; with the variable, one that is suspected not to can be ruled out.
Instructions Best() {
  static const Instructions best = [] {
    const char* given = std::getenv("BERT_TF_INSTRUCTIONS");
    const std::string most = given == nullptr ? "" : given;
    Instructions allowed = Instructions::kAvx512Bf16;
    if (most == "generic") allowed = Instructions::kGeneric;
    if (most == "avx2") allowed = Instructions::kAvx2;
    if (most == "avx512") allowed = Instructions::kAvx512;
    return std::min(allowed, Found());
  }();
  return best;
}

// Calls a kernel as compiled for the best instructions of this CPU.
#define BERT_TF_RUN(kernel, ...)                                         \
  switch (Best()) {                                                      \
    case Instructions::kAvx512Bf16:                                      \
      avx512_bf16::kernel(__VA_ARGS__);                                  \
      break;                                                             \
    case Instructions::kAvx512: avx512::kernel(__VA_ARGS__); break;      \
    case Instructions::kAvx2: avx2::kernel(__VA_ARGS__); break;          \
    case Instructions::kGeneric: generic::kernel(__VA_ARGS__); break;    \
  }
#else
#define BERT_TF_RUN(kernel, ...) generic::kernel(__VA_ARGS__)
#endif

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

constexpr int64_t kRowsOfABlock = 64;
constexpr int64_t kClassesOfABlock = 256;

// The kernels' type for T: Bfloat16 for tensorflow::bfloat16, float for float.
template <class T>
struct KernelTypeOf {
  using type = T;
};
template <>
struct KernelTypeOf<tensorflow::bfloat16> {
  using type = Bfloat16;
};
template <class T>
using KernelType = typename KernelTypeOf<T>::type;

template <class T>
const KernelType<T>* Read(const Tensor& tensor) {
  return reinterpret_cast<const KernelType<T>*>(tensor.flat<T>().data());
}

template <class T>
KernelType<T>* Write(Tensor* tensor) {
  return reinterpret_cast<KernelType<T>*>(tensor->flat<T>().data());
}

using Rows = std::function<void(int64_t begin, int64_t end)>;
using SummedRows = std::function<void(int64_t begin, int64_t end, float* sums)>;

// Divides rows among the threads; `cost` is that of a row, roughly in cycles.
void ForRows(OpKernelContext* context, int64_t rows, int64_t cost, const Rows& compute) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  workers->ParallelFor(rows, cost, compute);
}

// Divides classes among the threads, so that each sums its part of a bias's gradient; `cost` is that
// of a class.
void ForClasses(OpKernelContext* context, int64_t classes, int64_t cost, const Rows& compute) {
  const int64_t blocks = (classes + kClassesOfABlock - 1) / kClassesOfABlock;
  ForRows(context, blocks, cost * kClassesOfABlock, [&](int64_t begin, int64_t end) {
    compute(begin * kClassesOfABlock, std::min(classes, end * kClassesOfABlock));
  });
}

// The same with `width` sums over all rows, which are added in the order of the blocks; the tensors
// `sums` take them one after another.
tensorflow::Status ForSummedRows(OpKernelContext* context, int64_t rows, int64_t cost,
                                 int64_t width, const SummedRows& compute,
                                 const std::vector<Tensor*>& sums) {
  const int64_t blocks = (rows + kRowsOfABlock - 1) / kRowsOfABlock;
  Tensor room;
  TF_RETURN_IF_ERROR(
      context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({blocks, width}), &room));
  float* parts = room.flat<float>().data();
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  workers->ParallelFor(blocks, cost * kRowsOfABlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* part = parts + block * width;
      std::fill(part, part + width, 0.0f);
      compute(block * kRowsOfABlock, std::min(rows, (block + 1) * kRowsOfABlock), part);
    }
  });
  int64_t first = 0;
  for (Tensor* sum : sums) {
    auto total = sum->flat<float>();
    total.setZero();
    for (int64_t block = 0; block < blocks; ++block) {
      const float* part = parts + block * width + first;
      for (int64_t i = 0; i < total.size(); ++i) total.data()[i] += part[i];
    }
    first += total.size();
  }
  return tensorflow::OkStatus();
}

// Reads and checks the inputs places [R] and row_of [B, S], given by index, where R is `rows`.
tensorflow::Status ReadPlaces(OpKernelContext* context, int places, int row_of, int64_t rows,
                              Places* found) {
  const Tensor &of_row = context->input(places), &of_place = context->input(row_of);
  if (of_place.dims() != 2 || of_row.NumElements() != rows) {
    return InvalidArgument(rows, " rows have places ", of_row.shape().DebugString(),
                           " among rows of places ", of_place.shape().DebugString());
  }
  *found = {of_place.dim_size(1), Read<int32_t>(of_row), Read<int32_t>(of_place)};
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t place = found->of_row[row];
    if (place < 0 || place >= of_place.NumElements()) {
      return InvalidArgument("place ", place, " of row ", row, " is outside [0, ",
                             of_place.NumElements(), ")");
    }
  }
  for (int64_t place = 0; place < of_place.NumElements(); ++place) {
    if (found->row_of[place] >= rows) {
      return InvalidArgument("row ", found->row_of[place], " is not below ", rows);
    }
  }
  return tensorflow::OkStatus();
}

// Base class of kernels that draw masks, with inputs key [1] and counter [2] and the attribute
// threshold.
class DrawingKernel : public OpKernel {
 public:
  explicit DrawingKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("threshold", &threshold_));
    OP_REQUIRES(context, threshold_ >= 0 && threshold_ < kLevels,
                InvalidArgument("threshold ", threshold_, " is outside [0, 2**16)"));
  }

 protected:
  Draw DrawOf(OpKernelContext* context, int key, int counter) const {
    const auto place = context->input(counter).flat<tensorflow::uint64>();
    return {context->input(key).flat<tensorflow::uint64>()(0), place(0), place(1),
            static_cast<uint16_t>(threshold_),
            static_cast<float>(kLevels) / static_cast<float>(kLevels - threshold_)};
  }

  bool drops() const { return threshold_ > 0; }

 private:
  static constexpr int kLevels = 1 << 16;
  int threshold_;
};

template <class T>
class BiasGeluOp : public OpKernel {
 public:
  explicit BiasGeluOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("exact", &exact_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &product = context->input(0), &bias = context->input(1);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, product.shape(), &y));
    if (product.NumElements() == 0) return;
    GeluArgs<KernelType<T>> args{bias.NumElements(), exact_};
    args.product = Read<T>(product);
    args.bias = Read<float>(bias);
    args.y = Write<T>(y);
    ForRows(context, product.NumElements() / args.width, 2 * args.width,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(BiasGelu, args, begin, end); });
  }

 private:
  bool exact_;
};

template <class T>
class BiasGeluGradOp : public OpKernel {
 public:
  explicit BiasGeluGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("exact", &exact_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &product = context->input(0), &bias = context->input(1);
    Tensor *dproduct, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, product.shape(), &dproduct));
    OP_REQUIRES_OK(context, context->allocate_output(1, bias.shape(), &dbias));
    GeluArgs<KernelType<T>> args{bias.NumElements(), exact_};
    args.product = Read<T>(product);
    args.bias = Read<float>(bias);
    args.dy = Read<T>(context->input(2));
    args.dproduct = Write<T>(dproduct);
    OP_REQUIRES_OK(context, ForSummedRows(context, product.NumElements() / args.width,
                                          3 * args.width, args.width,
                                          [&](int64_t begin, int64_t end, float* sums) {
                                            BERT_TF_RUN(BiasGeluGrad, args, begin, end, sums);
                                          },
                                          {dbias}));
  }

 private:
  bool exact_;
};

template <class T>
class ResidualNormOp : public DrawingKernel {
 public:
  using DrawingKernel::DrawingKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &product = context->input(0), &residual = context->input(2);
    Tensor *y, *half, *stats;
    NormArgs<KernelType<T>> args{residual.dim_size(1)};
    const int64_t rows = residual.dim_size(0);
    OP_REQUIRES_OK(context, ReadPlaces(context, 7, 8, rows, &args.places));
    OP_REQUIRES_OK(context, context->allocate_output(0, residual.shape(), &y));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({rows, 2}), &stats));
    if (std::is_same<T, float>::value) {
      context->set_output(1, *y);
    } else {
      OP_REQUIRES_OK(context, context->allocate_output(1, residual.shape(), &half));
      args.half = Write<T>(half);
    }
    args.draw = DrawOf(context, 5, 6);
    args.product = Read<T>(product);
    args.bias = Read<float>(context->input(1));
    args.residual = Read<float>(residual);
    args.gamma = Read<float>(context->input(3));
    args.beta = Read<float>(context->input(4));
    args.y = Write<float>(y);
    args.stats = Write<float>(stats);
    ForRows(context, rows, 3 * args.width,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(ResidualNorm, args, begin, end); });
  }
};

template <class T>
class ResidualNormGradOp : public DrawingKernel {
 public:
  using DrawingKernel::DrawingKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &product = context->input(0), &residual = context->input(2);
    NormArgs<KernelType<T>> args{residual.dim_size(1)};
    const int64_t rows = residual.dim_size(0);
    OP_REQUIRES_OK(context, ReadPlaces(context, 7, 8, rows, &args.places));
    Tensor *dproduct, *dresidual, *dbias, *dgamma, *dbeta;
    const TensorShape vector({args.width});
    OP_REQUIRES_OK(context, context->allocate_output(0, product.shape(), &dproduct));
    OP_REQUIRES_OK(context, context->allocate_output(1, vector, &dbias));
    OP_REQUIRES_OK(context, context->allocate_output(2, residual.shape(), &dresidual));
    OP_REQUIRES_OK(context, context->allocate_output(3, vector, &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(4, vector, &dbeta));
    args.draw = DrawOf(context, 5, 6);
    args.product = Read<T>(product);
    args.bias = Read<float>(context->input(1));
    args.residual = Read<float>(residual);
    args.gamma = Read<float>(context->input(3));
    args.stats = const_cast<float*>(Read<float>(context->input(4)));
    args.dy = Read<float>(context->input(9));
    args.dhalf = Read<T>(context->input(10));
    args.dproduct = Write<T>(dproduct);
    args.dresidual = Write<float>(dresidual);
    OP_REQUIRES_OK(context,
                   ForSummedRows(context, rows, 5 * args.width, 3 * args.width,
                                 [&](int64_t begin, int64_t end, float* sums) {
                                   BERT_TF_RUN(ResidualNormGrad, args, begin, end, sums);
                                 },
                                 {dbias, dgamma, dbeta}));
  }
};

template <class T>
class SoftmaxDropoutOp : public DrawingKernel {
 public:
  using DrawingKernel::DrawingKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& scores = context->input(0);
    Tensor *probabilities, *dropped;
    OP_REQUIRES_OK(context, context->allocate_output(0, scores.shape(), &probabilities));
    SoftmaxArgs<KernelType<T>> args{scores.dim_size(3), scores.dim_size(1) * scores.dim_size(2)};
    if (drops()) {
      OP_REQUIRES_OK(context, context->allocate_output(1, scores.shape(), &dropped));
      args.dropped = Write<T>(dropped);
    } else {
      context->set_output(1, *probabilities);
    }
    args.draw = DrawOf(context, 2, 3);
    args.scores = Read<T>(scores);
    args.bias = Read<float>(context->input(1));
    args.probabilities = Write<T>(probabilities);
    ForRows(context, scores.dim_size(0) * args.rows_of_an_example, 4 * args.width,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(SoftmaxDropout, args, begin, end); });
  }
};

template <class T>
class SoftmaxDropoutGradOp : public DrawingKernel {
 public:
  using DrawingKernel::DrawingKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& probabilities = context->input(0);
    Tensor* dscores;
    OP_REQUIRES_OK(context, context->allocate_output(0, probabilities.shape(), &dscores));
    SoftmaxArgs<KernelType<T>> args{probabilities.dim_size(3),
                                    probabilities.dim_size(1) * probabilities.dim_size(2)};
    args.draw = DrawOf(context, 1, 2);
    args.probabilities = const_cast<KernelType<T>*>(Read<T>(probabilities));
    args.ddropped = Read<T>(context->input(3));
    args.dscores = Write<T>(dscores);
    ForRows(context, probabilities.dim_size(0) * args.rows_of_an_example, 3 * args.width,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(SoftmaxDropoutGrad, args, begin, end); });
  }
};

// Reads and checks the first inputs of a loss: product, bias and labels.
template <class T>
tensorflow::Status ReadScores(OpKernelContext* context, LossArgs<KernelType<T>>* args) {
  const Tensor &product = context->input(0), &labels = context->input(2);
  args->rows = product.dim_size(0);
  args->classes = product.dim_size(1);
  args->product = Read<T>(product);
  args->bias = Read<float>(context->input(1));
  args->labels = Read<int32_t>(labels);
  if (context->input(1).NumElements() != args->classes || labels.NumElements() != args->rows) {
    return InvalidArgument("scores are ", product.shape().DebugString(), ", the bias ",
                           context->input(1).shape().DebugString(), ", the labels ",
                           labels.shape().DebugString());
  }
  for (int64_t row = 0; row < args->rows; ++row) {
    if (args->labels[row] < 0 || args->labels[row] >= args->classes) {
      return InvalidArgument("label ", args->labels[row], " is outside [0, ", args->classes, ")");
    }
  }
  return tensorflow::OkStatus();
}

template <class T>
class SoftmaxLossOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    LossArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadScores<T>(context, &args));
    Tensor *losses, *best, *log_totals;
    const TensorShape vector({args.rows});
    OP_REQUIRES_OK(context, context->allocate_output(0, vector, &losses));
    OP_REQUIRES_OK(context, context->allocate_output(1, vector, &best));
    OP_REQUIRES_OK(context, context->allocate_output(2, vector, &log_totals));
    args.losses = Write<float>(losses);
    args.best = Write<int32_t>(best);
    args.log_totals = Write<float>(log_totals);
    ForRows(context, args.rows, 3 * args.classes,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(SoftmaxLoss, args, begin, end); });
  }
};

template <class T>
class SoftmaxLossGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    LossArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadScores<T>(context, &args));
    Tensor *dproduct, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &dproduct));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(1).shape(), &dbias));
    args.log_totals = const_cast<float*>(Read<float>(context->input(3)));
    args.dlosses = Read<float>(context->input(4));
    args.dproduct = Write<T>(dproduct);
    args.dbias = Write<float>(dbias);
    ForClasses(context, args.classes, 2 * args.rows, [&](int64_t begin, int64_t end) {
      BERT_TF_RUN(SoftmaxLossGrad, args, begin, end);
    });
  }
};

// Base class of kernels that compare two distributions, with the attribute temperature.
class DivergenceKernel : public OpKernel {
 public:
  explicit DivergenceKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("temperature", &temperature_));
    OP_REQUIRES(context, temperature_ > 0,
                InvalidArgument("the temperature must be positive, not ", temperature_));
  }

 protected:
  // Reads and checks the first inputs: product and bias, and those that are known.
  template <class T>
  tensorflow::Status ReadBoth(OpKernelContext* context, DivergenceArgs<KernelType<T>>* args) {
    const Tensor &product = context->input(0), &bias = context->input(1);
    const Tensor &known = context->input(2), &known_bias = context->input(3);
    args->rows = product.dim_size(0);
    args->classes = product.dim_size(1);
    args->scale = 1.0f / temperature_;
    args->product = Read<T>(product);
    args->bias = Read<float>(bias);
    args->known_product = Read<T>(known);
    args->known_bias = Read<float>(known_bias);
    if (product.shape() != known.shape() || bias.NumElements() != args->classes ||
        known_bias.NumElements() != args->classes) {
      return InvalidArgument("scores are ", product.shape().DebugString(), " and ",
                             known.shape().DebugString(), ", the biases ",
                             bias.shape().DebugString(), " and ",
                             known_bias.shape().DebugString());
    }
    return tensorflow::OkStatus();
  }

 private:
  float temperature_;
};

template <class T>
class DivergenceOp : public DivergenceKernel {
 public:
  using DivergenceKernel::DivergenceKernel;

  void Compute(OpKernelContext* context) override {
    DivergenceArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadBoth<T>(context, &args));
    float** outputs[] = {&args.losses, &args.log_totals, &args.known_log_totals};
    for (int i = 0; i < 3; ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, TensorShape({args.rows}), &output));
      *outputs[i] = Write<float>(output);
    }
    ForRows(context, args.rows, 6 * args.classes,
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(Divergence, args, begin, end); });
  }
};

template <class T>
class DivergenceGradOp : public DivergenceKernel {
 public:
  using DivergenceKernel::DivergenceKernel;

  void Compute(OpKernelContext* context) override {
    DivergenceArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadBoth<T>(context, &args));
    Tensor *dproduct, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &dproduct));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(1).shape(), &dbias));
    args.log_totals = const_cast<float*>(Read<float>(context->input(4)));
    args.known_log_totals = const_cast<float*>(Read<float>(context->input(5)));
    args.dlosses = Read<float>(context->input(6));
    args.dproduct = Write<T>(dproduct);
    args.dbias = Write<float>(dbias);
    ForClasses(context, args.classes, 4 * args.rows, [&](int64_t begin, int64_t end) {
      BERT_TF_RUN(DivergenceGrad, args, begin, end);
    });
  }
};

// Base class of kernels that split rows into heads or merge them, with the attribute heads.
class HeadsKernel : public OpKernel {
 public:
  explicit HeadsKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
    OP_REQUIRES(context, heads_ > 0, InvalidArgument("heads must be positive, not ", heads_));
  }

 protected:
  int heads_;
};

// The same with the attribute scale, a factor of the query.
class ScaledHeadsKernel : public HeadsKernel {
 public:
  explicit ScaledHeadsKernel(OpKernelConstruction* context) : HeadsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

 protected:
  float scale_;
};

template <class T>
class SplitHeadsOp : public ScaledHeadsKernel {
 public:
  using ScaledHeadsKernel::ScaledHeadsKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &joined = context->input(0), &row_of = context->input(3);
    HeadsArgs<KernelType<T>> args{heads_, joined.dim_size(1) / (3 * heads_)};
    OP_REQUIRES_OK(context, ReadPlaces(context, 2, 3, joined.dim_size(0), &args.places));
    args.scale = scale_;
    args.joined = Read<T>(joined);
    args.bias = Read<float>(context->input(1));
    const TensorShape part_shape({row_of.dim_size(0), heads_, row_of.dim_size(1), args.size});
    for (int part = 0; part < 3; ++part) {
      Tensor* y;
      OP_REQUIRES_OK(context, context->allocate_output(part, part_shape, &y));
      args.parts[part] = Write<T>(y);
    }
    ForRows(context, row_of.NumElements(), 3 * args.width(),
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(SplitHeads, args, begin, end); });
  }
};

template <class T>
class SplitHeadsGradOp : public ScaledHeadsKernel {
 public:
  using ScaledHeadsKernel::ScaledHeadsKernel;

  void Compute(OpKernelContext* context) override {
    const int64_t rows = context->input(3).NumElements();
    HeadsArgs<KernelType<T>> args{heads_, context->input(0).dim_size(3)};
    OP_REQUIRES_OK(context, ReadPlaces(context, 3, 4, rows, &args.places));
    args.scale = scale_;
    const int64_t width = 3 * args.width();
    Tensor *djoined, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, width}), &djoined));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({width}), &dbias));
    for (int part = 0; part < 3; ++part) args.given[part] = Read<T>(context->input(part));
    args.djoined = Write<T>(djoined);
    OP_REQUIRES_OK(context, ForSummedRows(context, rows, width, width,
                                          [&](int64_t begin, int64_t end, float* sums) {
                                            BERT_TF_RUN(SplitHeadsGrad, args, begin, end, sums);
                                          },
                                          {dbias}));
  }
};

template <class T>
class MergeHeadsOp : public HeadsKernel {
 public:
  using HeadsKernel::HeadsKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& context_of_heads = context->input(0);
    const int64_t rows = context->input(1).NumElements();
    HeadsArgs<KernelType<T>> args{heads_, context_of_heads.dim_size(3)};
    OP_REQUIRES_OK(context, ReadPlaces(context, 1, 2, rows, &args.places));
    Tensor* merged;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({rows, args.width()}), &merged));
    args.given[0] = Read<T>(context_of_heads);
    args.rows = Write<T>(merged);
    ForRows(context, rows, args.width(),
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(MergeHeads, args, begin, end); });
  }
};

template <class T>
class MergeHeadsGradOp : public HeadsKernel {
 public:
  using HeadsKernel::HeadsKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &dmerged = context->input(0), &row_of = context->input(2);
    HeadsArgs<KernelType<T>> args{heads_, dmerged.dim_size(1) / heads_};
    OP_REQUIRES_OK(context, ReadPlaces(context, 1, 2, dmerged.dim_size(0), &args.places));
    Tensor* dcontext;
    const TensorShape shape({row_of.dim_size(0), heads_, row_of.dim_size(1), args.size});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &dcontext));
    args.given_rows = Read<T>(dmerged);
    args.parts[0] = Write<T>(dcontext);
    ForRows(context, row_of.NumElements(), args.width(),
            [&](int64_t begin, int64_t end) { BERT_TF_RUN(MergeHeadsGrad, args, begin, end); });
  }
};

}  // namespace bert_tf

namespace {

using tensorflow::OkStatus;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Outputs have the shapes of the inputs with these indices.
std::function<tensorflow::Status(InferenceContext*)> LikeInputs(std::vector<int> inputs) {
  return [inputs](InferenceContext* c) {
    for (size_t i = 0; i < inputs.size(); ++i) c->set_output(i, c->input(inputs[i]));
    return OkStatus();
  };
}

// Outputs are [B, N, S, H], from rows of `parts` * N * H numbers; `row_of` is that input's index.
std::function<tensorflow::Status(InferenceContext*)> OfHeads(int parts, int row_of) {
  return [parts, row_of](InferenceContext* c) {
    int64_t heads;
    TF_RETURN_IF_ERROR(c->GetAttr("heads", &heads));
    ShapeHandle rows, places;
    DimensionHandle size;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(row_of), 2, &places));
    TF_RETURN_IF_ERROR(c->Divide(c->Dim(rows, 1), parts * heads, true, &size));
    for (int part = 0; part < parts; ++part) {
      c->set_output(part, c->MakeShape({c->Dim(places, 0), c->MakeDim(heads), c->Dim(places, 1),
                                        size}));
    }
    return OkStatus();
  };
}

// The first output has rows of `parts` * N * H numbers, and a second one is such a row; `places` is
// that input's index.
std::function<tensorflow::Status(InferenceContext*)> OfRows(int parts, int places) {
  return [parts, places](InferenceContext* c) {
    ShapeHandle part, rows;
    DimensionHandle width;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &part));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(places), 1, &rows));
    TF_RETURN_IF_ERROR(c->Multiply(c->Dim(part, 1), c->Dim(part, 3), &width));
    TF_RETURN_IF_ERROR(c->Multiply(width, parts, &width));
    c->set_output(0, c->MakeShape({c->Dim(rows, 0), width}));
    if (c->num_outputs() == 2) c->set_output(1, c->MakeShape({width}));
    return OkStatus();
  };
}

}  // namespace

REGISTER_OP("BertTfBiasGelu")
    .Input("product: T")
    .Input("bias: float")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .Attr("exact: bool = false")
    .SetShapeFn(LikeInputs({0}));

REGISTER_OP("BertTfBiasGeluGrad")
    .Input("product: T")
    .Input("bias: float")
    .Input("dy: T")
    .Output("dproduct: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .Attr("exact: bool = false")
    .SetShapeFn(LikeInputs({0, 1}));

REGISTER_OP("BertTfResidualNorm")
    .Input("product: T")
    .Input("bias: float")
    .Input("residual: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("places: int32")
    .Input("row_of: int32")
    .Output("y: float")
    .Output("half: T")
    .Output("stats: float")
    .Attr("T: {float, bfloat16}")
    .Attr("threshold: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      c->set_output(1, c->input(2));
      c->set_output(2, c->MakeShape({c->UnknownDim(), c->MakeDim(2)}));
      return OkStatus();
    });

REGISTER_OP("BertTfResidualNormGrad")
    .Input("product: T")
    .Input("bias: float")
    .Input("residual: float")
    .Input("gamma: float")
    .Input("stats: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("places: int32")
    .Input("row_of: int32")
    .Input("dy: float")
    .Input("dhalf: T")
    .Output("dproduct: T")
    .Output("dbias: float")
    .Output("dresidual: float")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Attr("T: {float, bfloat16}")
    .Attr("threshold: int")
    .SetShapeFn(LikeInputs({0, 1, 2, 3, 3}));

REGISTER_OP("BertTfSoftmaxDropout")
    .Input("scores: T")
    .Input("bias: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Output("probabilities: T")
    .Output("dropped: T")
    .Attr("T: {float, bfloat16}")
    .Attr("threshold: int")
    .SetShapeFn(LikeInputs({0, 0}));

REGISTER_OP("BertTfSoftmaxDropoutGrad")
    .Input("probabilities: T")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("ddropped: T")
    .Output("dscores: T")
    .Attr("T: {float, bfloat16}")
    .Attr("threshold: int")
    .SetShapeFn(LikeInputs({0}));

REGISTER_OP("BertTfSoftmaxLoss")
    .Input("product: T")
    .Input("bias: float")
    .Input("labels: int32")
    .Output("losses: float")
    .Output("best: int32")
    .Output("log_totals: float")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(LikeInputs({2, 2, 2}));

REGISTER_OP("BertTfSoftmaxLossGrad")
    .Input("product: T")
    .Input("bias: float")
    .Input("labels: int32")
    .Input("log_totals: float")
    .Input("dlosses: float")
    .Output("dproduct: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(LikeInputs({0, 1}));

REGISTER_OP("BertTfDivergence")
    .Input("product: T")
    .Input("bias: float")
    .Input("known_product: T")
    .Input("known_bias: float")
    .Output("losses: float")
    .Output("log_totals: float")
    .Output("known_log_totals: float")
    .Attr("T: {float, bfloat16}")
    .Attr("temperature: float")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(c->Dim(c->input(0), 0)));
      return OkStatus();
    });

REGISTER_OP("BertTfDivergenceGrad")
    .Input("product: T")
    .Input("bias: float")
    .Input("known_product: T")
    .Input("known_bias: float")
    .Input("log_totals: float")
    .Input("known_log_totals: float")
    .Input("dlosses: float")
    .Output("dproduct: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .Attr("temperature: float")
    .SetShapeFn(LikeInputs({0, 1}));

REGISTER_OP("BertTfSplitHeads")
    .Input("joined: T")
    .Input("bias: float")
    .Input("places: int32")
    .Input("row_of: int32")
    .Output("query: T")
    .Output("key: T")
    .Output("value: T")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .Attr("scale: float")
    .SetShapeFn(OfHeads(3, 3));

REGISTER_OP("BertTfSplitHeadsGrad")
    .Input("dquery: T")
    .Input("dkey: T")
    .Input("dvalue: T")
    .Input("places: int32")
    .Input("row_of: int32")
    .Output("djoined: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .Attr("scale: float")
    .SetShapeFn(OfRows(3, 3));

REGISTER_OP("BertTfMergeHeads")
    .Input("context: T")
    .Input("places: int32")
    .Input("row_of: int32")
    .Output("merged: T")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .SetShapeFn(OfRows(1, 1));

REGISTER_OP("BertTfMergeHeadsGrad")
    .Input("dmerged: T")
    .Input("places: int32")
    .Input("row_of: int32")
    .Output("dcontext: T")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .SetShapeFn(OfHeads(1, 2));

#define BERT_TF_REGISTER(name, T)                                                      \
  REGISTER_KERNEL_BUILDER(                                                             \
      Name("BertTf" #name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),      \
      bert_tf::name##Op<T>)
#define BERT_TF_REGISTER_BOTH(name) \
  BERT_TF_REGISTER(name, float);    \
  BERT_TF_REGISTER(name, tensorflow::bfloat16)

BERT_TF_REGISTER_BOTH(BiasGelu);
BERT_TF_REGISTER_BOTH(BiasGeluGrad);
BERT_TF_REGISTER_BOTH(ResidualNorm);
BERT_TF_REGISTER_BOTH(ResidualNormGrad);
BERT_TF_REGISTER_BOTH(SoftmaxDropout);
BERT_TF_REGISTER_BOTH(SoftmaxDropoutGrad);
BERT_TF_REGISTER_BOTH(SoftmaxLoss);
BERT_TF_REGISTER_BOTH(SoftmaxLossGrad);
BERT_TF_REGISTER_BOTH(Divergence);
BERT_TF_REGISTER_BOTH(DivergenceGrad);
BERT_TF_REGISTER_BOTH(SplitHeads);
BERT_TF_REGISTER_BOTH(SplitHeadsGrad);
BERT_TF_REGISTER_BOTH(MergeHeads);
BERT_TF_REGISTER_BOTH(MergeHeadsGrad);
