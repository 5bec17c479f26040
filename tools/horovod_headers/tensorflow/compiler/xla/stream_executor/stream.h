// Included for GPUs alone. Horovod declares AsGpuStreamValue, which TensorFlow used to export.
#pragma once

#include "xla/stream_executor/stream.h"

namespace stream_executor {
namespace gpu {

inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}

}  // namespace gpu
}  // namespace stream_executor
