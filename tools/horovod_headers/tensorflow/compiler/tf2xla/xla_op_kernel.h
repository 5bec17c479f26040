// The first header of the file with Horovod's operations inside XLA clusters (see README.md of
// tools/horovod_headers). They are for GPUs alone and need what XLA no longer has: without this
// macro the rest of the file is empty.
#undef HAVE_GPU
