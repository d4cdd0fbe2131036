// The cuSPARSE of this process: its functions, its version, and handles to call it with.
#pragma once

#include <cusparse.h>  // types only: the functions are found at run time

#include <string>
#include <string_view>

#include "variant.h"

namespace sparse_autotune {

// The functions we call. All are there, and behave as the toolkit's header says, from 12.0 on; what
// a feature needs beyond that it asks for with cusparse_since().
struct CuSparse {
  std::string unavailable;  // why no function can be called; empty: all can
  int version = 0;          // as CUSPARSE_VERSION: 12603 is 12.6.3

  decltype(&::cusparseCreate) create = nullptr;
  decltype(&::cusparseSetStream) set_stream = nullptr;
  decltype(&::cusparseGetProperty) get_property = nullptr;
  decltype(&::cusparseGetErrorName) error_name = nullptr;
  decltype(&::cusparseGetErrorString) error_string = nullptr;
  decltype(&::cusparseCreateBsr) create_bsr = nullptr;  // from 12.1 on, else null
  decltype(&::cusparseCreateBlockedEll) create_blocked_ell = nullptr;
  decltype(&::cusparseDestroySpMat) destroy_sparse = nullptr;
  decltype(&::cusparseCreateDnMat) create_dense = nullptr;
  decltype(&::cusparseDestroyDnMat) destroy_dense = nullptr;
  decltype(&::cusparseDnMatSetValues) set_dense_values = nullptr;
  decltype(&::cusparseSpMM_bufferSize) spmm_buffer_size = nullptr;
  decltype(&::cusparseSpMM) spmm = nullptr;
  decltype(&::cusparseSDDMM_bufferSize) sddmm_buffer_size = nullptr;
  decltype(&::cusparseSDDMM) sddmm = nullptr;
};

// As NVIDIA writes it: "12.6.3".
std::string version_name(int version);

// Looked for at the first call, from any thread; the answer is kept.
const CuSparse& cusparse();

// Whether cuSPARSE is there and at least as new as `version`, from which on it has `feature`.
Support cusparse_since(int version, std::string_view feature);

// `what` names the call. Only after cusparse() was found to be available.
Status to_status(cusparseStatus_t status, std::string_view what);

// A handle for the current device, set to `stream`, for as long as the object lives.
//
// Handles are lent from a pool, so that no two threads share one and none is created on the hot
// path. Creating one allocates: a lease taken while capturing is legal all the same.
class CuSparseLease {
 public:
  CuSparseLease(int device, void* stream);
  ~CuSparseLease();
  CuSparseLease(const CuSparseLease&) = delete;
  CuSparseLease& operator=(const CuSparseLease&) = delete;

  const Status& status() const { return status_; }
  cusparseHandle_t handle() const { return handle_; }

 private:
  int device_;
  cusparseHandle_t handle_ = nullptr;
  Status status_ = Status::ok();
};

}  // namespace sparse_autotune
