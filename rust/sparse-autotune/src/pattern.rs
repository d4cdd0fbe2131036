use crate::context::{Context, Stream};
use crate::element::{Element, Index};
use crate::error::{check, invalid, Result};
use crate::matrix::{Dense, Layout};
use sparse_autotune_sys as sys;
use std::ffi::{c_void, CString};

/// What a product does besides multiplying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum Activation {
    #[default]
    None = sys::NONE,
    Relu = sys::RELU,
    /// By the error function.
    Gelu = sys::GELU,
    GeluTanh = sys::GELU_TANH,
    Silu = sys::SILU,
}

/// How a product is computed. The default is `A @ b` by the tuner's choice.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `dense @ op(A)` instead of `op(A) @ dense`.
    pub sparse_right: bool,
    /// `op(A)` is A^T.
    pub transpose: bool,
    pub activation: Activation,
    /// fp32 products on a GPU may round their inputs to TF32.
    pub allow_tf32: bool,
    pub deterministic: bool,
    /// A variant or a family; `None`: the tuner chooses.
    pub variant: Option<String>,
}

/// Where blocks are stored, checked and copied. Several matrices may share it.
pub struct Pattern {
    pub(crate) context: Context,
    pub(crate) handle: *mut sys::Pattern,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) block: (usize, usize),
    pub(crate) nnzb: usize,
}
// SAFETY: the C interface lets several threads use a pattern, and any one destroy it in the end.
unsafe impl Send for Pattern {}
unsafe impl Sync for Pattern {}

impl Drop for Pattern {
    fn drop(&mut self) {
        // SAFETY: nobody else has it, and its context is alive.
        unsafe { (self.context.shared.api.sparse_autotune_pattern_destroy)(self.handle) }
    }
}

fn signed(value: usize, name: &str) -> Result<i64> {
    i64::try_from(value).or_else(|_| invalid(format!("{name} must fit into 63 bits, got {value}")))
}

/// Operands of a product as addresses, of the context's device.
#[derive(Debug, Clone, Copy)]
pub struct RawProduct {
    /// As many elements as the pattern stores, blocks in order, each row-major.
    pub values: *const c_void,
    pub dense: *const c_void,
    pub dense_layout: Layout,
    /// Null: none. Else an entry for each row of the result, with `sparse_right` for each column.
    pub bias: *const c_void,
    pub result: *mut c_void,
    pub result_layout: Layout,
    pub stream: Stream,
}

/// Operands of a sampled product as addresses, of the context's device.
#[derive(Debug, Clone, Copy)]
pub struct RawSampledProduct {
    pub x: *const c_void,
    pub x_layout: Layout,
    pub y: *const c_void,
    pub y_layout: Layout,
    /// As many elements as the pattern stores, blocks in order, each row-major; written.
    pub values: *mut c_void,
    pub stream: Stream,
}

impl Pattern {
    /// BSR's indices of a `rows` x `cols` matrix in blocks of `block`.
    pub fn new<I: Index>(
        context: &Context,
        (rows, cols): (usize, usize),
        block: (usize, usize),
        crow_indices: &[I],
        col_indices: &[I],
    ) -> Result<Self> {
        if block.0 == 0 || crow_indices.len().checked_sub(1) != Some(rows / block.0) {
            return invalid(format!(
                "crow_indices must have one entry more than there are block rows, {} / {} + 1, got {}",
                rows, block.0, crow_indices.len()
            ));
        }
        let description = sys::PatternDescription {
            struct_size: std::mem::size_of::<sys::PatternDescription>(),
            rows: signed(rows, "rows")?,
            cols: signed(cols, "cols")?,
            block_rows: signed(block.0, "a block's rows")?,
            block_cols: signed(block.1, "a block's columns")?,
            nnzb: signed(col_indices.len(), "nnzb")?,
            crow_indices: crow_indices.as_ptr().cast(),
            col_indices: col_indices.as_ptr().cast(),
            index_type: I::TYPE,
            reserved: 0,
            stream: std::ptr::null_mut(),
        };
        let api = context.shared.api;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both arrays have as many entries as the description says.
        check(api, unsafe {
            (api.sparse_autotune_pattern_create)(context.shared.handle, &description, &mut handle)
        })?;
        let nnzb = col_indices.len();
        Ok(Pattern {
            context: context.clone(),
            handle,
            rows,
            cols,
            block,
            nnzb,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements of all stored blocks.
    pub fn stored(&self) -> usize {
        self.nnzb * self.block.0 * self.block.1
    }

    /// `op(A)`'s rows and columns.
    pub(crate) fn size(&self, options: &Options) -> (usize, usize) {
        match options.transpose {
            true => (self.cols, self.rows),
            false => (self.rows, self.cols),
        }
    }

    pub(crate) fn must_be_of_the_cpu(&self) -> Result<()> {
        match self.context.shared.is_cuda {
            true => invalid(
                "slices are host memory, and the context is a CUDA device: use the raw functions",
            ),
            false => Ok(()),
        }
    }

    pub(crate) fn with_product<T: Element, R>(
        &self,
        raw: &RawProduct,
        options: &Options,
        call: impl FnOnce(&sys::Product) -> Result<R>,
    ) -> Result<R> {
        let variant = match &options.variant {
            None => None,
            Some(name) => match CString::new(name.as_str()) {
                Ok(name) => Some(name),
                Err(_) => return invalid(format!("variant must be a name, got {name:?}")),
            },
        };
        call(&sys::Product {
            struct_size: std::mem::size_of::<sys::Product>(),
            values: raw.values,
            dtype: T::DTYPE,
            activation: options.activation as i32,
            dense: raw.dense_layout.with_memory(raw.dense.cast_mut())?,
            result: raw.result_layout.with_memory(raw.result)?,
            bias: raw.bias,
            sparse_right: options.sparse_right.into(),
            transpose: options.transpose.into(),
            frozen: 0,
            allow_tf32: options.allow_tf32.into(),
            deterministic: options.deterministic.into(),
            reserved: 0,
            variant: variant
                .as_ref()
                .map_or(std::ptr::null(), |name| name.as_ptr()),
            stream: raw.stream.0,
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
        })
    }

    /// `op(A) @ dense` and its like on memory that the compiler knows nothing of, such as a GPU's.
    /// Only enqueues work on the stream, once the kind of product has been raced.
    ///
    /// # Safety
    /// - Every address is valid on the context's device for all elements of its layout, of type
    ///   `T` and aligned to it, until the stream has done the work; `bias` for as many as its
    ///   description says, `values` for [`stored`](Self::stored).
    /// - Nothing else writes the operands, or reads or writes the result, in that time.
    /// - The stream is one of the context's device, and alive.
    pub unsafe fn matmul_raw<T: Element>(&self, raw: &RawProduct, options: &Options) -> Result<()> {
        let api = self.context.shared.api;
        self.with_product::<T, _>(raw, options, |product| {
            check(api, (api.sparse_autotune_matmul)(self.handle, product))
        })
    }

    /// The values of `x @ y` at the stored blocks, summed over the batch.
    pub fn sampled_matmul<T: Element>(
        &self,
        x: Dense<'_, T>,
        y: Dense<'_, T>,
        values: &mut [T],
    ) -> Result<()> {
        self.must_be_of_the_cpu()?;
        if values.len() != self.stored() {
            return invalid(format!(
                "values must have the {} elements of the stored blocks, got {}",
                self.stored(),
                values.len()
            ));
        }
        let raw = RawSampledProduct {
            x: x.data.as_ptr().cast(),
            x_layout: x.layout,
            y: y.data.as_ptr().cast(),
            y_layout: y.layout,
            values: values.as_mut_ptr().cast(),
            stream: Stream::default(),
        };
        // SAFETY: slices hold all elements of their layouts; `values` is borrowed alone, and a
        // product on the CPU is over when it returns.
        unsafe { self.sampled_matmul_raw::<T>(&raw) }
    }

    /// [`sampled_matmul`](Self::sampled_matmul) on memory that the compiler knows nothing of, such
    /// as a GPU's. Only enqueues work on the stream, once the kind of product has been raced.
    ///
    /// # Safety
    /// As of [`matmul_raw`](Self::matmul_raw): `x` and `y` are read, and `values` is written.
    pub unsafe fn sampled_matmul_raw<T: Element>(&self, raw: &RawSampledProduct) -> Result<()> {
        let product = sys::SampledProduct {
            struct_size: std::mem::size_of::<sys::SampledProduct>(),
            values: raw.values,
            dtype: T::DTYPE,
            allow_tf32: 0,
            deterministic: 0,
            reserved: 0,
            x: raw.x_layout.with_memory(raw.x.cast_mut())?,
            y: raw.y_layout.with_memory(raw.y.cast_mut())?,
            variant: std::ptr::null(),
            stream: raw.stream.0,
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
        };
        let api = self.context.shared.api;
        check(
            api,
            (api.sparse_autotune_sampled_matmul)(self.handle, &product),
        )
    }
}
