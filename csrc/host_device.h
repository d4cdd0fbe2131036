// For functions that host and device share.
#pragma once

#ifdef __CUDACC__
#define SPARSE_AUTOTUNE_HOST_DEVICE __host__ __device__
#else
#define SPARSE_AUTOTUNE_HOST_DEVICE
#endif
