//! Block-sparse (BSR) x dense products on CPUs and NVIDIA GPUs. The first product of a kind races
//! every kernel that can compute it, verifies the winner and remembers it, also for later processes.
//!
//! ```no_run
//! use sparse_autotune::{BsrMatrix, Context, Dense};
//!
//! # fn main() -> sparse_autotune::Result<()> {
//! let context = Context::cpu()?;
//! // 4 x 4 in blocks of 2: one block in the first block row, none in the second.
//! let a = BsrMatrix::new(&context, (4, 4), (2, 2), &[0, 1, 1], &[1], vec![1.0f32, 2.0, 3.0, 4.0])?;
//! let c = a.matmul(Dense::row_major(&[1.0f32; 12], 4, 3)?)?;
//! assert_eq!(c[..3], [3.0; 3]);
//! # Ok(())
//! # }
//! ```
//!
//! The library `libsparse_autotune_core.so` is loaded when it is first needed, from the folder that
//! `SPARSE_AUTOTUNE_LIB_DIR` names; see the crate `sparse-autotune-sys`.
//!
//! # Handing over buffers of other frameworks
//!
//! [`Pattern::matmul_raw`] and [`Pattern::sampled_matmul_raw`] know no owner of memory, so that adapters can be written
//! on top. For a tensor of Burn on CubeCL's CUDA runtime an adapter takes these steps:
//!
//! 1. From the client of the tensor's device, `client.get_resource(handle)` gives the resource of
//!    the tensor's handle; its `ptr` plus the handle's offset is `RawProduct::dense` (and likewise
//!    values, bias and the result, which is allocated by `client.empty` before).
//! 2. The tensor's shape and strides, in elements, are a [`Layout`]. A tensor whose rows and
//!    columns are both strided is made contiguous first; leading dimensions that do not collapse
//!    into one `batch` are looped over.
//! 3. `RawProduct::stream` is the `CUstream` that the client enqueues on: work is ordered behind
//!    what the client has enqueued, once its pending operations have been flushed, and before what
//!    it enqueues next. All resources stay alive until the call returns; CubeCL frees in stream
//!    order, so that no synchronisation is needed.
//! 4. A [`Pattern`] is made once a layer, from host slices of the indices, and kept with it; the
//!    backward is `matmul_raw` with `transpose` changed, for the dense operand, and
//!    `sampled_matmul_raw`, for the values.
//! 5. In Burn's autotune style the whole call is one `Tunable`: the choice among kernels is made
//!    here, keyed and cached by this library.

mod bsr;
mod context;
mod element;
mod error;
mod matrix;
mod pattern;
mod report;
mod settings;

pub use bsr::BsrMatrix;
pub use context::{Context, DeviceInfo, Stream};
pub use element::{Bf16, Element, Index, F16};
pub use error::{Error, Result};
pub use matrix::{Dense, DenseMut, Layout};
pub use pattern::{Activation, Options, Pattern, RawProduct, RawSampledProduct};
pub use report::{Entrant, Outcome, Report};
pub use settings::{tuning_count, Mode, Settings};
