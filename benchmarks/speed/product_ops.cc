// The kernels of products.inc as TensorFlow operations: products of rows with the kernel of a dense
// layer, for CPUs that multiply bfloat16. A kernel is packed once for all micro batches of an
// update. Each element is summed by one thread, in an order that depends on the shapes alone, so
// that results never depend on the number of threads.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

// Compilers before these versions do not know the instructions.
#if defined(__x86_64__) && __GNUC__ >= 11
#define BERT_TF_PRODUCTS
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace bert_tf {

constexpr int64_t kBlock = 32;  // rows and columns
constexpr int64_t kStep = 32;   // elements of a row at a time

constexpr int64_t Steps(int64_t elements) { return (elements + kStep - 1) / kStep; }
constexpr int64_t Blocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }
// Words of a block or panel.
constexpr int64_t WordsOf(int64_t inner) { return Steps(inner) * kStep / 2 * kBlock; }

enum class Instructions { kNone, kAvx512Bf16, kAmx };

#if defined(BERT_TF_PRODUCTS)
#include "../../bert_tf/native/tiles.inc"

#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace avx512_bf16 {
#include "products.inc"
}  // namespace avx512_bf16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define BERT_TF_AMX
namespace amx {
#include "products.inc"
}  // namespace amx
#undef BERT_TF_AMX
#pragma GCC pop_options

Instructions Found() {
  for (const bool has : {__builtin_cpu_supports("avx512bf16") != 0,
                         __builtin_cpu_supports("avx512bw") != 0,
                         __builtin_cpu_supports("avx512dq") != 0,
                         __builtin_cpu_supports("avx512vl") != 0}) {
    if (!has) return Instructions::kNone;
  }
  return HasTiles() ? Instructions::kAmx : Instructions::kAvx512Bf16;
}

// The best set of this CPU, or a lesser one if BERT_TF_INSTRUCTIONS names one.
Instructions Best() {
  static const Instructions best = [] {
    const char* given = std::getenv("BERT_TF_INSTRUCTIONS");
    if (given == nullptr) return Found();
    const bool has_bfloat16 = std::string(given) == "avx512_bf16";
    return std::min(has_bfloat16 ? Instructions::kAvx512Bf16 : Instructions::kNone, Found());
  }();
  return best;
}

#define BERT_TF_RUN(kernel, ...)                                                     \
  switch (Best()) {                                                                  \
    case Instructions::kAmx: amx::kernel(__VA_ARGS__); break;                        \
    case Instructions::kAvx512Bf16: avx512_bf16::kernel(__VA_ARGS__); break;         \
    case Instructions::kNone: break;                                                 \
  }
#else
Instructions Best() { return Instructions::kNone; }
#define BERT_TF_RUN(kernel, ...)
#endif

using tensorflow::bfloat16;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;
using tensorflow::errors::Unimplemented;

// What one thread packs of the left side at most, so that it stays in its cache.
constexpr int64_t kBytesOfATask = 3 << 19;
constexpr int64_t kMostBlocksOfATask = 8;
// So many that threads which are slower for a while get fewer of them.
constexpr int64_t kTasksOfAThread = 8;

const uint16_t* Read(const Tensor& tensor) {
  return reinterpret_cast<const uint16_t*>(tensor.flat<bfloat16>().data());
}

uint16_t* Write(Tensor* tensor) {
  return reinterpret_cast<uint16_t*>(tensor->flat<bfloat16>().data());
}

const uint32_t* Words(const Tensor& tensor) { return tensor.flat<uint32_t>().data(); }

using Tasks = std::function<void(int64_t task)>;

// Divides tasks, of which each takes `cycles`, among the threads.
void ForTasks(OpKernelContext* context, int64_t tasks, int64_t cycles, const Tasks& run) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  workers->ParallelFor(tasks, cycles, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) run(task);
  });
}

// Room that a thread keeps for the blocks of its tasks.
uint32_t* RoomOfThread(int64_t words) {
  constexpr size_t kAlignment = 64;
  static thread_local std::vector<uint32_t> room;
  const size_t least = static_cast<size_t>(words) + kAlignment / sizeof(uint32_t);
  if (room.size() < least) room.resize(least);
  const auto address = reinterpret_cast<uintptr_t>(room.data());
  return reinterpret_cast<uint32_t*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

// Packs the panels of a right side: x [inner, columns] or, transposed, x [columns, inner].
void PackPanels(OpKernelContext* context, const uint16_t* x, bool transposed, int64_t inner,
                int64_t columns, uint32_t* panels) {
  ForTasks(context, Blocks(columns), WordsOf(inner), [&](int64_t panel) {
    uint32_t* to = panels + panel * WordsOf(inner);
    if (transposed) {
      BERT_TF_RUN(PackTransposedPanel, x, inner, columns, panel * kBlock, to);
    } else {
      BERT_TF_RUN(PackPanel, x, inner, columns, panel * kBlock, to);
    }
  });
}

// How the blocks of a product are divided into tasks: some rows of blocks by some panels.
struct Division {
  int64_t blocks, panels;  // of a task
  int64_t tasks_down, tasks_across;

  Division(OpKernelContext* context, int64_t rows, int64_t inner, int64_t columns) {
    const int64_t bytes = std::max<int64_t>(1, WordsOf(inner) * sizeof(uint32_t));
    blocks = std::clamp<int64_t>(kBytesOfATask / bytes, 1, kMostBlocksOfATask);
    tasks_down = (Blocks(rows) + blocks - 1) / blocks;
    const int64_t threads = context->device()->tensorflow_cpu_worker_threads()->num_threads;
    const int64_t down = std::max<int64_t>(1, tasks_down);
    const int64_t wanted = (kTasksOfAThread * threads + down - 1) / down;
    panels = std::max<int64_t>(1, Blocks(columns) / wanted);
    tasks_across = (Blocks(columns) + panels - 1) / panels;
  }
};

using LeftBlocks = std::function<const uint32_t*(int64_t first_block, int64_t blocks)>;

// y [rows, columns]: the left side's blocks by the panels of the right side.
void Multiply(OpKernelContext* context, const LeftBlocks& left, const uint32_t* panels,
              int64_t rows, int64_t inner, int64_t columns, uint16_t* y) {
  const Division division(context, rows, inner, columns);
  const int64_t cycles = division.blocks * division.panels * WordsOf(inner) / 8;
  ForTasks(context, division.tasks_down * division.tasks_across, cycles, [&](int64_t task) {
    const int64_t block = task % division.tasks_down * division.blocks;
    const int64_t panel = task / division.tasks_down * division.panels;
    const int64_t blocks = std::min(division.blocks, Blocks(rows) - block);
    const int64_t wide = std::min(division.panels, Blocks(columns) - panel);
    const uint32_t* right = panels + panel * WordsOf(inner);
    BERT_TF_RUN(MultiplyBlocks, left(block, blocks), blocks, right, wide, Steps(inner),
                block * kBlock, panel * kBlock, rows, columns, y);
  });
}

// y = x [rows, inner] by panels; each task packs the rows that it multiplies.
void MultiplyRows(OpKernelContext* context, const uint16_t* x, const uint32_t* panels,
                  int64_t rows, int64_t inner, int64_t columns, uint16_t* y) {
  const LeftBlocks packed = [&](int64_t first, int64_t blocks) -> const uint32_t* {
    uint32_t* room = RoomOfThread(blocks * WordsOf(inner));
    for (int64_t block = 0; block < blocks; ++block) {
      BERT_TF_RUN(PackLeft, x, rows, inner, (first + block) * kBlock,
                  room + block * WordsOf(inner));
    }
    return room;
  };
  Multiply(context, packed, panels, rows, inner, columns, y);
}

// Base class of kernels that need the instructions.
class ProductKernel : public OpKernel {
 public:
  explicit ProductKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES(context, Best() != Instructions::kNone,
                Unimplemented("this processor has no instructions that multiply bfloat16"));
  }
};

class PackKernelOp : public ProductKernel {
 public:
  using ProductKernel::ProductKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& kernel = context->input(0);
    OP_REQUIRES(context, kernel.dims() == 2,
                InvalidArgument("a kernel has two axes, not ", kernel.shape().DebugString()));
    const int64_t inputs = kernel.dim_size(0), outputs = kernel.dim_size(1);
    Tensor *forward, *backward;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({Blocks(outputs), WordsOf(inputs)}), &forward));
    OP_REQUIRES_OK(context, context->allocate_output(
                                1, TensorShape({Blocks(inputs), WordsOf(outputs)}), &backward));
    PackPanels(context, Read(kernel), false, inputs, outputs, forward->flat<uint32_t>().data());
    PackPanels(context, Read(kernel), true, outputs, inputs, backward->flat<uint32_t>().data());
  }
};

class DenseOp : public ProductKernel {
 public:
  using ProductKernel::ProductKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &kernel = context->input(1), &panels = context->input(2);
    OP_REQUIRES(context, x.dims() == 2 && kernel.dims() == 2,
                InvalidArgument("rows and kernel have two axes each, not ",
                                x.shape().DebugString(), " and ", kernel.shape().DebugString()));
    const int64_t rows = x.dim_size(0), inputs = x.dim_size(1), outputs = kernel.dim_size(1);
    OP_REQUIRES(context,
                inputs == kernel.dim_size(0) &&
                    panels.shape() == TensorShape({Blocks(outputs), WordsOf(inputs)}),
                InvalidArgument("rows ", x.shape().DebugString(), ", kernel ",
                                kernel.shape().DebugString(), " and its panels ",
                                panels.shape().DebugString(), " do not fit together"));
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, outputs}), &y));
    MultiplyRows(context, Read(x), Words(panels), rows, inputs, outputs, Write(y));
  }
};

class DenseGradOp : public ProductKernel {
 public:
  using ProductKernel::ProductKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1), &panels = context->input(2);
    const int64_t rows = x.dim_size(0), inputs = x.dim_size(1), outputs = dy.dim_size(1);
    OP_REQUIRES(context,
                dy.dim_size(0) == rows &&
                    panels.shape() == TensorShape({Blocks(inputs), WordsOf(outputs)}),
                InvalidArgument("rows ", x.shape().DebugString(), ", gradients ",
                                dy.shape().DebugString(), " and panels ",
                                panels.shape().DebugString(), " do not fit together"));
    Tensor *dx, *dkernel;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({inputs, outputs}), &dkernel));
    MultiplyRows(context, Read(dy), Words(panels), rows, outputs, inputs, Write(dx));
    Tensor left, right;
    OP_REQUIRES_OK(context, context->allocate_temp(
                                tensorflow::DT_UINT32,
                                TensorShape({Blocks(inputs), WordsOf(rows)}), &left));
    OP_REQUIRES_OK(context, context->allocate_temp(
                                tensorflow::DT_UINT32,
                                TensorShape({Blocks(outputs), WordsOf(rows)}), &right));
    uint32_t* of_left = left.flat<uint32_t>().data();
    ForTasks(context, Blocks(inputs), WordsOf(rows), [&](int64_t block) {
      BERT_TF_RUN(PackTransposedLeft, Read(x), inputs, rows, block * kBlock,
                  of_left + block * WordsOf(rows));
    });
    PackPanels(context, Read(dy), false, rows, outputs, right.flat<uint32_t>().data());
    Multiply(context, [&](int64_t first, int64_t) { return of_left + first * WordsOf(rows); },
             Words(right), inputs, rows, outputs, Write(dkernel));
  }
};

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("BertTfPackKernel")
    .Input("kernel: bfloat16")
    .Output("forward: uint32")
    .Output("backward: uint32")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      c->set_output(1, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      return Status();
    });

// x [rows, inputs] by kernel [inputs, outputs]. `forward` and `backward` are the kernel packed, from
// which x and its gradient are computed; `kernel` receives the gradient of the weights.
REGISTER_OP("BertTfDense")
    .Input("x: bfloat16")
    .Input("kernel: bfloat16")
    .Input("forward: uint32")
    .Input("backward: uint32")
    .Output("y: bfloat16")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, kernel;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &kernel));
      c->set_output(0, c->Matrix(c->Dim(x, 0), c->Dim(kernel, 1)));
      return Status();
    });

REGISTER_OP("BertTfDenseGrad")
    .Input("x: bfloat16")
    .Input("dy: bfloat16")
    .Input("backward: uint32")
    .Output("dx: bfloat16")
    .Output("dkernel: bfloat16")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, dy;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &dy));
      c->set_output(0, x);
      c->set_output(1, c->Matrix(c->Dim(x, 1), c->Dim(dy, 1)));
      return Status();
    });

REGISTER_KERNEL_BUILDER(Name("BertTfPackKernel").Device(tensorflow::DEVICE_CPU), PackKernelOp);
REGISTER_KERNEL_BUILDER(Name("BertTfDense").Device(tensorflow::DEVICE_CPU), DenseOp);
REGISTER_KERNEL_BUILDER(Name("BertTfDenseGrad").Device(tensorflow::DEVICE_CPU), DenseGradOp);

}  // namespace bert_tf

// The name of the instructions that multiply here; empty if there are none.
extern "C" const char* bert_tf_product_instructions() {
  switch (bert_tf::Best()) {
    case bert_tf::Instructions::kAmx: return "amx";
    case bert_tf::Instructions::kAvx512Bf16: return "avx512_bf16";
    default: return "";
  }
}
