// Optimizer updates of all variables of a network, each in one operation.
//
// TensorFlow's own operations make a pass over memory for each of unscaling, norm, clipping, decay
// and Adam, variable by variable. Here each number is read and written once (twice for LAMB, whose
// step first needs the norms of the whole variable, and three times for LANS, which needs that of
// the gradient before), in pieces of equal size that all threads share.
//
// Results are bit-identical on every machine and with any number of threads: the pieces and the
// order in which their sums are added are fixed, the number of partial sums does not depend on the
// width of the registers, and build.py keeps the compiler from contracting products and sums into
// fused multiply-adds.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"

// Compiles a function for several generations of CPUs; the dynamic loader picks the best one.
#if defined(__x86_64__) && defined(__linux__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

namespace bert_tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::errors::InvalidArgument;

using Variable = tensorflow::core::RefCountPtr<Var>;

constexpr int64_t kPieceSize = 1 << 16;  // elements; a piece of every array fits in a core's cache
constexpr int64_t kPiecesInTurn = 4;     // pieces that a thread takes at a time
constexpr int kLanes = 16;               // partial sums of a sum

// ---- Arithmetic of one piece ----

// Partial sums; element i is added to lane i % kLanes.
struct Lanes {
  double sums[kLanes] = {};

  double Total() const {
    double total = 0.0;
    for (double sum : sums) total += sum;
    return total;
  }
};

// The scalars of one update, the same for all variables.
struct Step {
  float factor;  // multiplies the gradients
  float learning_rate;
  float scale;           // multiplies Adam's direction
  float gradient_scale;  // of LANS: multiplies the gradient's direction
  float epsilon;         // added to the square root of the second moment
  float gain_1;          // 1 - beta_1: what a gradient adds to the first moment
  float gain_2;          // 1 - beta_2: what its square adds to the second moment
  float weight_decay;
};

// One piece of a variable, with its gradient and moments.
struct Span {
  const float* gradient;
  float* m;
  float* v;
  float* weights;
  int64_t size;
};

// Converts bfloat16 to float32, whose upper halves these are.
FOR_EVERY_CPU void Widen(const uint16_t* __restrict halves, int64_t size, float* __restrict to) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

FOR_EVERY_CPU void Add(const float* one, const float* other, int64_t size, float* sum) {
  for (int64_t i = 0; i < size; ++i) sum[i] = one[i] + other[i];
}

FOR_EVERY_CPU double SumOfSquares(const float* values, int64_t size) {
  Lanes lanes;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes.sums[lane] += value * value;
    }
  }
  for (; i < size; ++i) {
    const double value = values[i];
    lanes.sums[i % kLanes] += value * value;
  }
  return lanes.Total();
}

// A moment one update later. With m * beta + g * gain, where both factors are rounded, a constant g
// would have the moment g * gain / (1 - beta): 1.3e-5 too much for a beta of 0.999. The gain is the
// only rounded factor here.
inline float Moved(float moment, float towards, float gain) {
  return moment + (towards - moment) * gain;
}

// Decay first, then Adam's step.
FOR_EVERY_CPU void AdamWOfPiece(const Span& span, const Step& step, bool decays) {
  const float* __restrict gradient = span.gradient;
  float* __restrict m = span.m;
  float* __restrict v = span.v;
  float* __restrict weights = span.weights;
  const float factor = step.factor, epsilon = step.epsilon;
  const float gain_1 = step.gain_1, gain_2 = step.gain_2;
  const float decay = decays ? step.learning_rate * step.weight_decay : 0.0f;
  const float rate = step.learning_rate * step.scale;
  for (int64_t i = 0; i < span.size; ++i) {
    const float g = gradient[i] * factor;
    m[i] = Moved(m[i], g, gain_1);
    v[i] = Moved(v[i], g * g, gain_2);
    const float decayed = weights[i] - decay * weights[i];
    weights[i] = decayed - (m[i] * rate) / (std::sqrt(v[i]) + epsilon);
  }
}

// LAMB's step before the trust ratio and the learning rate.
inline float LambDirection(float m, float v, float weight, const Step& step, float decay) {
  return step.scale * m / (std::sqrt(v) + step.epsilon) + decay * weight;
}

struct Squares {
  double weights = 0.0;
  double directions = 0.0;
};

// Updates the moments; returns the sums of squares for the trust ratio.
FOR_EVERY_CPU Squares LambMomentsOfPiece(const Span& span, const Step& step, float decay) {
  const float* __restrict gradient = span.gradient;
  float* __restrict m = span.m;
  float* __restrict v = span.v;
  const float* __restrict weights = span.weights;
  const Step local = step;
  Lanes of_weights, of_directions;
  const auto add = [&](int64_t i, int lane) __attribute__((always_inline)) {
    const float g = gradient[i] * local.factor;
    m[i] = Moved(m[i], g, local.gain_1);
    v[i] = Moved(v[i], g * g, local.gain_2);
    const double weight = weights[i];
    const double direction = LambDirection(m[i], v[i], weights[i], local, decay);
    of_weights.sums[lane] += weight * weight;
    of_directions.sums[lane] += direction * direction;
  };
  int64_t i = 0;
  for (; i + kLanes <= span.size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < span.size; ++i) add(i, i % kLanes);
  return {of_weights.Total(), of_directions.Total()};
}

FOR_EVERY_CPU void LambStepOfPiece(const Span& span, const Step& step, float decay, float rate) {
  const float* __restrict m = span.m;
  const float* __restrict v = span.v;
  float* __restrict weights = span.weights;
  const Step local = step;
  for (int64_t i = 0; i < span.size; ++i) {
    weights[i] -= rate * LambDirection(m[i], v[i], weights[i], local, decay);
  }
}

struct LansSquares {
  double weights = 0.0;
  double momenta = 0.0;    // of the direction of the momentum
  double gradients = 0.0;  // of that of the gradient
};

// The two directions of LANS, before their trust ratios.
struct LansDirections {
  float momentum;
  float gradient;
};

inline LansDirections DirectionsOfLans(float g, float m, float v, float weight, const Step& step,
                                       float decay) {
  const float root = std::sqrt(v) + step.epsilon;
  const float decayed = decay * weight;
  return {step.scale * m / root + decayed, step.gradient_scale * g / root + decayed};
}

// Updates the moments; returns the sums of squares for both trust ratios. The step's factor is that
// of this variable: it divides by the gradient's norm.
FOR_EVERY_CPU LansSquares LansMomentsOfPiece(const Span& span, const Step& step, float decay) {
  const float* __restrict gradient = span.gradient;
  float* __restrict m = span.m;
  float* __restrict v = span.v;
  const float* __restrict weights = span.weights;
  const Step local = step;
  Lanes of_weights, of_momenta, of_gradients;
  const auto add = [&](int64_t i, int lane) __attribute__((always_inline)) {
    const float g = gradient[i] * local.factor;
    m[i] = Moved(m[i], g, local.gain_1);
    v[i] = Moved(v[i], g * g, local.gain_2);
    const LansDirections found = DirectionsOfLans(g, m[i], v[i], weights[i], local, decay);
    const double weight = weights[i], of_m = found.momentum, of_g = found.gradient;
    of_weights.sums[lane] += weight * weight;
    of_momenta.sums[lane] += of_m * of_m;
    of_gradients.sums[lane] += of_g * of_g;
  };
  int64_t i = 0;
  for (; i + kLanes <= span.size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < span.size; ++i) add(i, i % kLanes);
  return {of_weights.Total(), of_momenta.Total(), of_gradients.Total()};
}

// The rates are the learning rate times the share and the trust ratio of each direction.
FOR_EVERY_CPU void LansStepOfPiece(const Span& span, const Step& step, float decay,
                                   float momentum_rate, float gradient_rate) {
  const float* __restrict gradient = span.gradient;
  const float* __restrict m = span.m;
  const float* __restrict v = span.v;
  float* __restrict weights = span.weights;
  const Step local = step;
  for (int64_t i = 0; i < span.size; ++i) {
    const float g = gradient[i] * local.factor;
    const LansDirections found = DirectionsOfLans(g, m[i], v[i], weights[i], local, decay);
    weights[i] -= momentum_rate * found.momentum + gradient_rate * found.gradient;
  }
}

// ---- Pieces and threads ----

struct Piece {
  int tensor;
  int64_t start;
  int64_t size;
};

// Cuts tensors of the given sizes into pieces; those of one tensor are consecutive.
std::vector<Piece> CutIntoPieces(const std::vector<int64_t>& sizes) {
  std::vector<Piece> pieces;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t start = 0; start < sizes[tensor]; start += kPieceSize) {
      const int64_t size = std::min(kPieceSize, sizes[tensor] - start);
      pieces.push_back({static_cast<int>(tensor), start, size});
    }
  }
  return pieces;
}

// Calls work(index) for every piece, on the session's threads.
template <typename Work>
void ForEachPiece(OpKernelContext* context, int64_t number_of_pieces, const Work& work) {
  using tensorflow::thread::ThreadPool;
  ThreadPool* threads = context->device()->tensorflow_cpu_worker_threads()->workers;
  const ThreadPool::SchedulingParams in_turns(ThreadPool::SchedulingStrategy::kFixedBlockSize,
                                              absl::nullopt, kPiecesInTurn);
  threads->ParallelFor(number_of_pieces, in_turns, [&work](int64_t first, int64_t end) {
    for (int64_t piece = first; piece < end; ++piece) work(piece);
  });
}

// A piece of a gradient in float32. Gradients of bfloat16 products are bfloat16 themselves; they
// are converted piece by piece, so that none is ever written to memory in float32.
class GradientPiece {
 public:
  GradientPiece(const Tensor& gradient, const Piece& piece) {
    if (gradient.dtype() == tensorflow::DT_FLOAT) {
      values_ = static_cast<const float*>(gradient.data()) + piece.start;
      return;
    }
    thread_local std::vector<float> room(kPieceSize);
    Widen(static_cast<const uint16_t*>(gradient.data()) + piece.start, piece.size, room.data());
    values_ = room.data();
  }

  // Valid until this thread constructs another GradientPiece.
  const float* values() const { return values_; }

 private:
  const float* values_;
};

// ---- Variables ----

// The variables and moments of an update, locked, each with a buffer that is not shared.
class LockedVariables {
 public:
  // Takes them from the inputs "weights", "first_moments", "second_moments" and "gradients", lists
  // of equal length.
  Status Lock(OpKernelContext* context) {
    TF_RETURN_IF_ERROR(context->input_list("gradients", &gradients_));
    const int count = gradients_.size();
    TF_RETURN_IF_ERROR(LookUp(context, "weights", &weights_));
    TF_RETURN_IF_ERROR(LookUp(context, "first_moments", &m_));
    TF_RETURN_IF_ERROR(LookUp(context, "second_moments", &v_));
    std::vector<tensorflow::mutex*> mutexes;
    for (auto* variables : {&weights_, &m_, &v_}) {
      for (Variable& variable : *variables) mutexes.push_back(variable->mu());
    }
    // By address, as TensorFlow locks several variables, so that there are no deadlocks.
    std::sort(mutexes.begin(), mutexes.end());
    if (std::adjacent_find(mutexes.begin(), mutexes.end()) != mutexes.end()) {
      return InvalidArgument("a variable or moment is given twice");
    }
    for (tensorflow::mutex* mutex : mutexes) locks_.emplace_back(*mutex);
    for (int i = 0; i < count; ++i) {
      for (Variable* variable : {&weights_[i], &m_[i], &v_[i]}) {
        TF_RETURN_IF_ERROR(MakeUnshared(context, variable->get(), gradients_[i]));
      }
      sizes_.push_back(gradients_[i].NumElements());
    }
    return tensorflow::OkStatus();
  }

  const std::vector<int64_t>& sizes() const { return sizes_; }

  GradientPiece GradientOf(const Piece& piece) { return {gradients_[piece.tensor], piece}; }

  // The gradient is null, for arithmetic that does not need it.
  Span SpanOf(const Piece& piece) {
    const auto start_of = [&piece](const Tensor& tensor) {
      return static_cast<float*>(tensor.data()) + piece.start;
    };
    return {nullptr, start_of(*m_[piece.tensor]->tensor()), start_of(*v_[piece.tensor]->tensor()),
            start_of(*weights_[piece.tensor]->tensor()), piece.size};
  }

  Span SpanOf(const Piece& piece, const GradientPiece& gradient) {
    Span span = SpanOf(piece);
    span.gradient = gradient.values();
    return span;
  }

 private:
  static Status LookUp(OpKernelContext* context, const char* name,
                       std::vector<Variable>* variables) {
    OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list(name, &handles));
    for (const Tensor& handle : handles) {
      variables->emplace_back();
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(
          context, handle.scalar<tensorflow::ResourceHandle>()(), &variables->back()));
    }
    return tensorflow::OkStatus();
  }

  // Copies the variable's buffer if it is shared: a tensor that was read must keep its value.
  static Status MakeUnshared(OpKernelContext* context, Var* variable, const Tensor& gradient) {
    Tensor* tensor = variable->tensor();
    if (tensor->dtype() != tensorflow::DT_FLOAT || tensor->shape() != gradient.shape()) {
      return InvalidArgument("a variable is of type ", tensorflow::DataTypeString(tensor->dtype()),
                             " and shape ", tensor->shape().DebugString(),
                             ", its gradient of shape ",
                             gradient.shape().DebugString());
    }
    if (tensor->RefCountIsOne()) return tensorflow::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
    std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
    *tensor = copy;
    return tensorflow::OkStatus();
  }

  // Declared in this order so that locks are released before the variables that own the mutexes.
  std::vector<Variable> weights_, m_, v_;
  OpInputList gradients_;
  std::deque<tensorflow::mutex_lock> locks_;
  std::vector<int64_t> sizes_;
};

// ---- Operations ----

// Takes the input "values", a list of tensors, and sums the squares of their pieces.
class SquaresOfValues : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList values;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    std::vector<int64_t> sizes;
    for (const Tensor& value : values) sizes.push_back(value.NumElements());
    const std::vector<Piece> pieces = CutIntoPieces(sizes);
    std::vector<double> squares(pieces.size());
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const GradientPiece value(values[piece.tensor], piece);
      squares[number] = SumOfSquares(value.values(), piece.size);
    });
    Output(context, values.size(), pieces, squares);
  }

 protected:
  virtual void Output(OpKernelContext* context, int tensors, const std::vector<Piece>& pieces,
                      const std::vector<double>& squares) = 0;
};

class GlobalNorm : public SquaresOfValues {
 public:
  using SquaresOfValues::SquaresOfValues;

 protected:
  void Output(OpKernelContext* context, int, const std::vector<Piece>&,
              const std::vector<double>& squares) override {
    double total = 0.0;
    for (double part : squares) total += part;
    Tensor* norm = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &norm));
    norm->scalar<float>()() = static_cast<float>(std::sqrt(total));
  }
};

class SumsOfSquares : public SquaresOfValues {
 public:
  using SquaresOfValues::SquaresOfValues;

 protected:
  void Output(OpKernelContext* context, int tensors, const std::vector<Piece>& pieces,
              const std::vector<double>& squares) override {
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {tensors}, &sums));
    auto totals = sums->vec<double>();
    totals.setZero();
    for (size_t number = 0; number < pieces.size(); ++number) {
      totals(pieces[number].tensor) += squares[number];
    }
  }
};

// Adds gradients to sums, in place if the sums' buffers are not shared.
class AddGradients : public OpKernel {
 public:
  explicit AddGradients(OpKernelConstruction* construction) : OpKernel(construction) {
    int sums;
    tensorflow::DataTypeVector gradients;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &sums));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &gradients));
    OP_REQUIRES(construction, gradients.size() == static_cast<size_t>(sums),
                InvalidArgument("there are ", gradients.size(), " gradients for ", sums, " sums"));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList sums, gradients;
    OP_REQUIRES_OK(context, context->input_list("sums", &sums));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<int64_t> sizes;
    std::vector<Tensor*> added(sums.size());
    for (int i = 0; i < sums.size(); ++i) {
      OP_REQUIRES(context, sums[i].shape() == gradients[i].shape(),
                  InvalidArgument("a sum of shape ", sums[i].shape().DebugString(),
                                  " and a gradient of shape ",
                                  gradients[i].shape().DebugString()));
      sizes.push_back(sums[i].NumElements());
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, sums[i].shape(), &added[i]));
    }
    const std::vector<Piece> pieces = CutIntoPieces(sizes);
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const GradientPiece gradient(gradients[piece.tensor], piece);
      const auto* sum = static_cast<const float*>(sums[piece.tensor].data()) + piece.start;
      Add(sum, gradient.values(), piece.size,
          static_cast<float*>(added[piece.tensor]->data()) + piece.start);
    });
  }
};

// Base class of the optimizers: hyperparameters, and which variables decay.
class Optimizer : public OpKernel {
 public:
  explicit Optimizer(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("gain_1", &step_.gain_1));
    OP_REQUIRES_OK(construction, construction->GetAttr("gain_2", &step_.gain_2));
    OP_REQUIRES_OK(construction, construction->GetAttr("weight_decay", &step_.weight_decay));
    OP_REQUIRES_OK(construction, construction->GetAttr("decays", &decays_));
    int variables;
    tensorflow::DataTypeVector gradients;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &variables));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &gradients));
    const auto count = static_cast<size_t>(variables);
    OP_REQUIRES(construction, decays_.size() == count && gradients.size() == count,
                InvalidArgument("there are ", decays_.size(), " entries of decays and ",
                                gradients.size(), " gradients for ", variables, " variables"));
  }

  void Compute(OpKernelContext* context) override {
    Step step = step_;
    OP_REQUIRES_OK(context, ReadScalar(context, "factor", &step.factor));
    OP_REQUIRES_OK(context, ReadScalar(context, "learning_rate", &step.learning_rate));
    OP_REQUIRES_OK(context, ReadScalar(context, "scale", &step.scale));
    OP_REQUIRES_OK(context, ReadScalar(context, "epsilon", &step.epsilon));
    OP_REQUIRES_OK(context, ReadMore(context, &step));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context));
    Apply(context, step, CutIntoPieces(variables.sizes()), &variables);
  }

 protected:
  virtual void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
                     LockedVariables* variables) = 0;

  // Reads the scalars that not all optimizers have.
  virtual Status ReadMore(OpKernelContext*, Step*) const { return tensorflow::OkStatus(); }

  bool Decays(int tensor) const { return decays_[tensor]; }

  static Status ReadScalar(OpKernelContext* context, const char* name, float* value) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    if (tensor->NumElements() != 1) return InvalidArgument(name, " is not a scalar");
    *value = *static_cast<const float*>(tensor->data());
    return tensorflow::OkStatus();
  }

 private:
  Step step_;
  std::vector<bool> decays_;
};

class AdamW : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
             LockedVariables* variables) override {
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const GradientPiece gradient = variables->GradientOf(piece);
      AdamWOfPiece(variables->SpanOf(piece, gradient), step, Decays(piece.tensor));
    });
  }
};

// Base class of the halves of optimizers with a trust ratio for each variable. What the ratios
// need are sums of squares over a whole variable. The first half updates the moments and outputs
// the sums of each variable; the second half takes them and makes the step. In between they can be
// added up over ranks that have a part of each variable.
class LayerwiseOptimizer : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  float DecayOf(const Piece& piece, const Step& step) const {
    return Decays(piece.tensor) ? step.weight_decay : 0.0f;
  }

  // Adds the squares of pieces up to a row of sums for each variable: the output "squares".
  template <typename OfPiece, typename RowOf>
  static void OutputSums(OpKernelContext* context, const std::vector<Piece>& pieces, int variables,
                         int columns, const std::vector<OfPiece>& squares, const RowOf& row_of) {
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {variables, columns}, &sums));
    auto totals = sums->matrix<double>();
    totals.setZero();
    for (size_t number = 0; number < pieces.size(); ++number) {
      const auto row = row_of(squares[number]);
      for (int column = 0; column < columns; ++column) {
        totals(pieces[number].tensor, column) += row[column];
      }
    }
  }

  // An input with a row of sums for each variable.
  static Status ReadSums(OpKernelContext* context, const char* name, int64_t variables,
                         int64_t columns, const double** sums) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    if (tensor->NumElements() != variables * columns) {
      return InvalidArgument(name, " has shape ", tensor->shape().DebugString(), " for ",
                             variables, " variables with ", columns, " sums");
    }
    *sums = static_cast<const double*>(tensor->data());
    return tensorflow::OkStatus();
  }
};

// The bounds of trust ratios, and the variables that have one.
class TrustRatios {
 public:
  explicit TrustRatios(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("min_trust_ratio", &least_));
    OP_REQUIRES_OK(construction, construction->GetAttr("max_trust_ratio", &most_));
    OP_REQUIRES_OK(construction, construction->GetAttr("adapts", &adapts_));
    int variables;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &variables));
    OP_REQUIRES(construction, adapts_.size() == static_cast<size_t>(variables),
                InvalidArgument("there are ", adapts_.size(), " entries of adapts for ", variables,
                                " variables"));
  }

  // The output: the ratios of all variables for each kind of direction, one kind after another.
  // They follow from a row of sums of squares for each variable, of its weights and its directions.
  // Null, with the error in the context, if there is no memory.
  const float* Output(OpKernelContext* context, const double* squares, int64_t kinds) const {
    Tensor* output = nullptr;
    const auto variables = static_cast<int64_t>(adapts_.size());
    context->SetStatus(context->allocate_output(0, {kinds, variables}, &output));
    if (output == nullptr) return nullptr;
    float* ratios = output->flat<float>().data();
    for (int64_t tensor = 0; tensor < variables; ++tensor) {
      const double* row = squares + (1 + kinds) * tensor;
      for (int64_t kind = 0; kind < kinds; ++kind) {
        ratios[kind * variables + tensor] = Of(tensor, row[0], row[1 + kind]);
      }
    }
    return ratios;
  }

 private:
  // The ratio for a variable and one direction of it.
  float Of(int64_t tensor, double weights, double directions) const {
    if (!adapts_[tensor] || weights == 0.0 || directions == 0.0) return 1.0f;
    const float ratio = std::sqrt(weights) / std::sqrt(directions);
    return std::max(least_, std::min(ratio, most_));
  }

  float least_;
  float most_;
  std::vector<bool> adapts_;
};

class LambMoments : public LayerwiseOptimizer {
 public:
  using LayerwiseOptimizer::LayerwiseOptimizer;

 protected:
  void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
             LockedVariables* variables) override {
    std::vector<Squares> squares(pieces.size());
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const GradientPiece gradient = variables->GradientOf(piece);
      const Span span = variables->SpanOf(piece, gradient);
      squares[number] = LambMomentsOfPiece(span, step, DecayOf(piece, step));
    });
    OutputSums(context, pieces, variables->sizes().size(), 2, squares, [](const Squares& found) {
      return std::array<double, 2>{found.weights, found.directions};
    });
  }
};

class LambStep : public LayerwiseOptimizer {
 public:
  explicit LambStep(OpKernelConstruction* construction)
      : LayerwiseOptimizer(construction), ratios_(construction) {}

 protected:
  void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
             LockedVariables* variables) override {
    const double* squares;
    OP_REQUIRES_OK(context,
                   ReadSums(context, "squares", variables->sizes().size(), 2, &squares));
    const float* ratios = ratios_.Output(context, squares, 1);
    if (ratios == nullptr) return;
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      LambStepOfPiece(variables->SpanOf(piece), step, DecayOf(piece, step),
                      step.learning_rate * ratios[piece.tensor]);
    });
  }

 private:
  TrustRatios ratios_;
};

// Base class of the halves of LANS, which divide each variable's gradient by its norm.
class LansOptimizer : public LayerwiseOptimizer {
 public:
  using LayerwiseOptimizer::LayerwiseOptimizer;

 protected:
  Status ReadMore(OpKernelContext* context, Step* step) const override {
    return ReadScalar(context, "gradient_scale", &step->gradient_scale);
  }

  // The step of each variable: its factor divides by the norm of the variable's gradient. The
  // step's own factor, the same for all, cancels. A gradient of zeros stays so, and one whose norm
  // is too small to divide by becomes zero.
  static Status Normalised(OpKernelContext* context, const Step& step, size_t variables,
                           std::vector<Step>* steps) {
    const double* squares;
    TF_RETURN_IF_ERROR(ReadSums(context, "gradient_squares", variables, 1, &squares));
    steps->assign(variables, step);
    for (size_t tensor = 0; tensor < variables; ++tensor) {
      const float inverse = 1.0 / std::sqrt(squares[tensor]);
      (*steps)[tensor].factor = std::isinf(inverse) ? 0.0f : inverse;
    }
    return tensorflow::OkStatus();
  }
};

class LansMoments : public LansOptimizer {
 public:
  using LansOptimizer::LansOptimizer;

 protected:
  void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
             LockedVariables* variables) override {
    std::vector<Step> steps;
    OP_REQUIRES_OK(context, Normalised(context, step, variables->sizes().size(), &steps));
    std::vector<LansSquares> squares(pieces.size());
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const GradientPiece gradient = variables->GradientOf(piece);
      const Span span = variables->SpanOf(piece, gradient);
      squares[number] = LansMomentsOfPiece(span, steps[piece.tensor], DecayOf(piece, step));
    });
    OutputSums(context, pieces, steps.size(), 3, squares, [](const LansSquares& found) {
      return std::array<double, 3>{found.weights, found.momenta, found.gradients};
    });
  }
};

class LansStep : public LansOptimizer {
 public:
  explicit LansStep(OpKernelConstruction* construction)
      : LansOptimizer(construction), ratios_(construction) {}

 protected:
  void Apply(OpKernelContext* context, const Step& step, const std::vector<Piece>& pieces,
             LockedVariables* variables) override {
    std::vector<Step> steps;
    OP_REQUIRES_OK(context, Normalised(context, step, variables->sizes().size(), &steps));
    const double* squares;
    OP_REQUIRES_OK(context, ReadSums(context, "squares", steps.size(), 3, &squares));
    const float* of_momenta = ratios_.Output(context, squares, 2);
    if (of_momenta == nullptr) return;
    const float* of_gradients = of_momenta + steps.size();
    ForEachPiece(context, pieces.size(), [&](int64_t number) {
      const Piece& piece = pieces[number];
      const int tensor = piece.tensor;
      const GradientPiece gradient = variables->GradientOf(piece);
      LansStepOfPiece(variables->SpanOf(piece, gradient), steps[tensor], DecayOf(piece, step),
                      step.learning_rate * (1.0f - step.gain_1) * of_momenta[tensor],
                      step.learning_rate * step.gain_1 * of_gradients[tensor]);
    });
  }

 private:
  TrustRatios ratios_;
};

Status ScalarOutput(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return tensorflow::OkStatus();
}

// [kinds of direction, variables]
Status RatiosOutput(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->UnknownShapeOfRank(2));
  return tensorflow::OkStatus();
}

Status NoOutput(tensorflow::shape_inference::InferenceContext*) {
  return tensorflow::OkStatus();
}

// A row of so many columns for each variable.
template <int columns>
Status RowsOutput(tensorflow::shape_inference::InferenceContext* context) {
  int variables;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &variables));
  context->set_output(0, context->Matrix(variables, columns));
  return tensorflow::OkStatus();
}

REGISTER_OP("BertTfGlobalNorm")
    .Input("values: T")
    .Output("norm: float")
    .Attr("T: list({float, bfloat16}) >= 1")
    .SetShapeFn(ScalarOutput);

REGISTER_OP("BertTfSumsOfSquares")
    .Input("values: T")
    .Output("sums: double")
    .Attr("T: list({float, bfloat16}) >= 1")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(context->num_inputs()));
      return tensorflow::OkStatus();
    });

REGISTER_OP("BertTfAddGradients")
    .Input("sums: N * float")
    .Input("gradients: T")
    .Output("added: N * float")
    .Attr("N: int >= 1")
    .Attr("T: list({float, bfloat16})")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return tensorflow::OkStatus();
    });

#define OPTIMIZER_OP(name)                   \
  REGISTER_OP(name)                          \
      .Input("weights: N * resource")        \
      .Input("first_moments: N * resource")  \
      .Input("second_moments: N * resource") \
      .Input("gradients: T")                 \
      .Input("factor: float")                \
      .Input("learning_rate: float")         \
      .Input("scale: float")                 \
      .Input("epsilon: float")               \
      .Attr("N: int >= 1")                   \
      .Attr("T: list({float, bfloat16})")    \
      .Attr("gain_1: float")                 \
      .Attr("gain_2: float")                 \
      .Attr("weight_decay: float")           \
      .Attr("decays: list(bool)")            \
      .SetIsStateful()

OPTIMIZER_OP("BertTfAdamW").SetShapeFn(NoOutput);
OPTIMIZER_OP("BertTfLambMoments").Output("squares: double").SetShapeFn(RowsOutput<2>);
OPTIMIZER_OP("BertTfLansMoments")
    .Input("gradient_scale: float")
    .Input("gradient_squares: double")
    .Output("squares: double")
    .SetShapeFn(RowsOutput<3>);

#define STEP_OP(name)                 \
  OPTIMIZER_OP(name)                  \
      .Input("squares: double")       \
      .Attr("min_trust_ratio: float") \
      .Attr("max_trust_ratio: float") \
      .Attr("adapts: list(bool)")     \
      .Output("trust_ratios: float")  \
      .SetShapeFn(RatiosOutput)

STEP_OP("BertTfLambStep");
STEP_OP("BertTfLansStep").Input("gradient_scale: float").Input("gradient_squares: double");

#undef STEP_OP
#undef OPTIMIZER_OP

REGISTER_KERNEL_BUILDER(Name("BertTfGlobalNorm").Device(tensorflow::DEVICE_CPU), GlobalNorm);
REGISTER_KERNEL_BUILDER(Name("BertTfSumsOfSquares").Device(tensorflow::DEVICE_CPU), SumsOfSquares);
REGISTER_KERNEL_BUILDER(Name("BertTfAddGradients").Device(tensorflow::DEVICE_CPU), AddGradients);
REGISTER_KERNEL_BUILDER(Name("BertTfAdamW").Device(tensorflow::DEVICE_CPU), AdamW);
REGISTER_KERNEL_BUILDER(Name("BertTfLambMoments").Device(tensorflow::DEVICE_CPU), LambMoments);
REGISTER_KERNEL_BUILDER(Name("BertTfLambStep").Device(tensorflow::DEVICE_CPU), LambStep);
REGISTER_KERNEL_BUILDER(Name("BertTfLansMoments").Device(tensorflow::DEVICE_CPU), LansMoments);
REGISTER_KERNEL_BUILDER(Name("BertTfLansStep").Device(tensorflow::DEVICE_CPU), LansStep);

}  // namespace
}  // namespace bert_tf
