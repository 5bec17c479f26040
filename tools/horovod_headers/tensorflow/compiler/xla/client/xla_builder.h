// Declares nothing: Horovod includes this header on CPUs and uses nothing of it (see README.md of
// tools/horovod_headers).
