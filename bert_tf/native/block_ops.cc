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
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
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

// The bias of a padding key's scores: its probability is 0 unless all keys have it.
constexpr float kPaddingBias = -10000.0f;

// A query is computed if the context has a row in its place.
template <class T>
struct AttentionArgs {
  int64_t heads, size;  // of a head
  float scale;          // of the queries
  Places places, read_places;  // of the rows of `joined` and of the context
  Draw draw;
  const T* joined;  // rows [3, N, H]
  const float* bias;
  const float* score_bias;  // of each key
  T* context;               // rows [N, H]
  float* stats;             // the largest score of each query and 1 / the sum of e**(score - largest)
  const T* dcontext;
  T* djoined;
  float* dbias;  // a row [3, N, H] for each example
};

namespace generic {
#include "simd.inc"
#include "block_kernels.inc"
#include "attention_kernels.inc"
}  // namespace generic

#if defined(__x86_64__)
#include "tiles.inc"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define BERT_TF_AVX2
namespace avx2 {
#include "simd.inc"
#include "block_kernels.inc"
#include "attention_kernels.inc"
}  // namespace avx2
#undef BERT_TF_AVX2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define BERT_TF_AVX512
namespace avx512 {
#include "simd.inc"
#include "block_kernels.inc"
#include "attention_kernels.inc"
}  // namespace avx512
#pragma GCC pop_options

#if __GNUC__ >= 10
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define BERT_TF_AVX512_BF16
namespace avx512_bf16 {
#include "simd.inc"
#include "block_kernels.inc"
#include "attention_kernels.inc"
}  // namespace avx512_bf16
#pragma GCC pop_options
#else
namespace avx512_bf16 = avx512;
#endif

#if __GNUC__ >= 11
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define BERT_TF_AMX
namespace amx {
#include "simd.inc"
#include "block_kernels.inc"
#include "attention_kernels.inc"
}  // namespace amx
#undef BERT_TF_AMX
#pragma GCC pop_options
#else
namespace amx = avx512_bf16;
#endif
#undef BERT_TF_AVX512_BF16
#undef BERT_TF_AVX512

enum class Instructions { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };

Instructions Found() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return Instructions::kGeneric;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Instructions::kAvx2;
  }
#if __GNUC__ >= 10
  if (__builtin_cpu_supports("avx512bf16")) {
    return HasTiles() ? Instructions::kAmx : Instructions::kAvx512Bf16;
  }
#endif
  return Instructions::kAvx512;
}

// The best set of this CPU, or a lesser one if BERT_TF_INSTRUCTIONS is avx512_bf16, avx512, avx2 or
// generic. All give the same bits, but for attention (attention_kernels.inc); with the variable, one
// that is suspected not to can be ruled out.
Instructions Best() {
  static const Instructions best = [] {
    const char* given = std::getenv("BERT_TF_INSTRUCTIONS");
    const std::string most = given == nullptr ? "" : given;
    Instructions allowed = Instructions::kAmx;
    if (most == "generic") allowed = Instructions::kGeneric;
    if (most == "avx2") allowed = Instructions::kAvx2;
    if (most == "avx512") allowed = Instructions::kAvx512;
    if (most == "avx512_bf16") allowed = Instructions::kAvx512Bf16;
    return std::min(allowed, Found());
  }();
  return best;
}

// Calls a kernel as compiled for the best instructions of this CPU.
#define BERT_TF_RUN(kernel, ...)                                         \
  switch (Best()) {                                                      \
    case Instructions::kAmx: amx::kernel(__VA_ARGS__); break;            \
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

// Adds rows of `width` numbers in order, from the column `first` on.
void SumParts(const float* parts, int64_t rows, int64_t width, int64_t first, Tensor* sum) {
  auto total = sum->flat<float>();
  total.setZero();
  for (int64_t row = 0; row < rows; ++row) {
    const float* part = parts + row * width + first;
    for (int64_t i = 0; i < total.size(); ++i) total.data()[i] += part[i];
  }
}

// ForRows with `width` sums over all rows, which are added in the order of the blocks; the tensors
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
    SumParts(parts, blocks, width, first, sum);
    first += sum->NumElements();
  }
  return tensorflow::OkStatus();
}

// Reads and checks the inputs places [R] and row_of [B, S], given by index, where R is `rows`: each
// row has a place of its own.
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
    const int32_t row = found->row_of[place];
    if (row >= rows) return InvalidArgument("row ", row, " is not below ", rows);
    if (row >= 0 && found->of_row[row] != place) {
      return InvalidArgument("row ", row, " is in place ", place, " and in ", found->of_row[row]);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t place = found->of_row[row];
    if (found->row_of[place] != row) {
      return InvalidArgument("place ", place, " of row ", row, " has row ", found->row_of[place]);
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

// Base class of attention and its gradient, with the attributes heads and scale.
class AttentionKernel : public DrawingKernel {
 public:
  explicit AttentionKernel(OpKernelConstruction* context) : DrawingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES(context, heads_ > 0, InvalidArgument("heads must be positive, not ", heads_));
  }

 protected:
  // Reads and checks the inputs that both have.
  template <class T>
  tensorflow::Status ReadInputs(OpKernelContext* context, AttentionArgs<KernelType<T>>* args) {
    const Tensor &joined = context->input(0), &bias = context->input(1);
    const Tensor &score_bias = context->input(2), &row_of = context->input(6);
    TF_RETURN_IF_ERROR(ReadPlaces(context, 5, 6, joined.dim_size(0), &args->places));
    TF_RETURN_IF_ERROR(
        ReadPlaces(context, 7, 8, context->input(7).NumElements(), &args->read_places));
    const int64_t width = joined.dim_size(1);
    if (width % (3 * heads_) != 0 || bias.NumElements() != width ||
        score_bias.shape() != row_of.shape() || context->input(8).shape() != row_of.shape()) {
      return InvalidArgument(heads_, " heads of rows ", joined.shape().DebugString(), ", a bias ",
                             bias.shape().DebugString(), " and score biases ",
                             score_bias.shape().DebugString(), " for places ",
                             row_of.shape().DebugString(), " and ",
                             context->input(8).shape().DebugString());
    }
    args->heads = heads_;
    args->size = width / (3 * heads_);
    args->scale = scale_;
    args->draw = DrawOf(context, 3, 4);
    args->joined = Read<T>(joined);
    args->bias = Read<float>(bias);
    args->score_bias = Read<float>(score_bias);
    return tensorflow::OkStatus();
  }

  // Divides the heads of all examples among the threads; `products` is the number of products.
  template <class T>
  void ForHeads(OpKernelContext* context, const AttentionArgs<T>& args, int64_t products,
                const Rows& compute) {
    const int64_t S = args.places.positions;
    ForRows(context, context->input(6).dim_size(0) * heads_, products * S * S * args.size / 16,
            compute);
  }

 private:
  int heads_;
  float scale_;
};

template <class T>
class AttentionOp : public AttentionKernel {
 public:
  using AttentionKernel::AttentionKernel;

  void Compute(OpKernelContext* context) override {
    AttentionArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadInputs<T>(context, &args));
    const Tensor& row_of = context->input(6);
    Tensor *merged, *stats;
    const TensorShape of_context({context->input(7).NumElements(), args.heads * args.size});
    const TensorShape of_queries({row_of.dim_size(0), args.heads, row_of.dim_size(1), 2});
    OP_REQUIRES_OK(context, context->allocate_output(0, of_context, &merged));
    OP_REQUIRES_OK(context, context->allocate_output(1, of_queries, &stats));
    args.context = Write<T>(merged);
    args.stats = Write<float>(stats);
    stats->flat<float>().setZero();  // of queries that are not computed
    ForHeads(context, args, 2,
             [&](int64_t begin, int64_t end) { BERT_TF_RUN(Attention, args, begin, end); });
  }
};

template <class T>
class AttentionGradOp : public AttentionKernel {
 public:
  using AttentionKernel::AttentionKernel;

  void Compute(OpKernelContext* context) override {
    AttentionArgs<KernelType<T>> args{};
    OP_REQUIRES_OK(context, ReadInputs<T>(context, &args));
    const Tensor &joined = context->input(0), &bias = context->input(1);
    const int64_t examples = context->input(6).dim_size(0), width = bias.NumElements();
    Tensor *djoined, *dbias, parts;
    OP_REQUIRES_OK(context, context->allocate_output(0, joined.shape(), &djoined));
    OP_REQUIRES_OK(context, context->allocate_output(1, bias.shape(), &dbias));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT,
                                                   TensorShape({examples, width}), &parts));
    args.stats = const_cast<float*>(Read<float>(context->input(9)));
    args.dcontext = Read<T>(context->input(10));
    args.djoined = Write<T>(djoined);
    args.dbias = Write<float>(&parts);
    ForHeads(context, args, 5,
             [&](int64_t begin, int64_t end) { BERT_TF_RUN(AttentionGrad, args, begin, end); });
    SumParts(args.dbias, examples, width, 0, dbias);
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

REGISTER_OP("BertTfAttention")
    .Input("joined: T")
    .Input("bias: float")
    .Input("score_bias: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("places: int32")
    .Input("row_of: int32")
    .Input("read_places: int32")
    .Input("read_row_of: int32")
    .Output("context: T")
    .Output("stats: float")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .Attr("scale: float")
    .Attr("threshold: int")
    .SetShapeFn([](InferenceContext* c) {
      int64_t heads;
      TF_RETURN_IF_ERROR(c->GetAttr("heads", &heads));
      ShapeHandle joined, places, read;
      DimensionHandle width;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &joined));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 2, &places));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(7), 1, &read));
      TF_RETURN_IF_ERROR(c->Divide(c->Dim(joined, 1), 3, true, &width));
      c->set_output(0, c->MakeShape({c->Dim(read, 0), width}));
      c->set_output(1, c->MakeShape({c->Dim(places, 0), c->MakeDim(heads), c->Dim(places, 1),
                                     c->MakeDim(2)}));
      return OkStatus();
    });

REGISTER_OP("BertTfAttentionGrad")
    .Input("joined: T")
    .Input("bias: float")
    .Input("score_bias: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("places: int32")
    .Input("row_of: int32")
    .Input("read_places: int32")
    .Input("read_row_of: int32")
    .Input("stats: float")
    .Input("dcontext: T")
    .Output("djoined: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int")
    .Attr("scale: float")
    .Attr("threshold: int")
    .SetShapeFn(LikeInputs({0, 1}));

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
BERT_TF_REGISTER_BOTH(SoftmaxLoss);
BERT_TF_REGISTER_BOTH(SoftmaxLossGrad);
BERT_TF_REGISTER_BOTH(Divergence);
BERT_TF_REGISTER_BOTH(DivergenceGrad);
BERT_TF_REGISTER_BOTH(Attention);
BERT_TF_REGISTER_BOTH(AttentionGrad);
