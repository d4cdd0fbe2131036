use crate::context::{Context, Stream};
use crate::element::{Element, Index};
use crate::error::{check, invalid, Error, Result};
use crate::matrix::{Dense, DenseMut, Layout};
use crate::pattern::{Activation, Options, Pattern, RawProduct};
use crate::report::Report;
use std::borrow::Cow;
use std::ffi::CString;
use std::sync::Arc;

/// A block-sparse matrix on the host: a pattern, and values that are owned or borrowed.
pub struct BsrMatrix<'a, T: Element> {
    pattern: Arc<Pattern>,
    values: Cow<'a, [T]>,
}

/// Of so many matrices.
fn zeros<T: Element>(rows: usize, cols: usize, batch: usize) -> Result<Vec<T>> {
    let count = rows
        .checked_mul(cols)
        .and_then(|count| count.checked_mul(batch));
    let mut made = Vec::new();
    match count.map(|count| (count, made.try_reserve_exact(count))) {
        Some((count, Ok(()))) => made.resize(count, T::default()),
        _ => {
            return Err(Error::OutOfMemory(format!(
                "no host memory for a result of {batch} x {rows} x {cols} elements"
            )))
        }
    }
    Ok(made)
}

impl<'a, T: Element> BsrMatrix<'a, T> {
    /// BSR's indices and the values of the blocks, each block row-major.
    pub fn new<I: Index>(
        context: &Context,
        shape: (usize, usize),
        block: (usize, usize),
        crow_indices: &[I],
        col_indices: &[I],
        values: impl Into<Cow<'a, [T]>>,
    ) -> Result<Self> {
        let pattern = Pattern::new(context, shape, block, crow_indices, col_indices)?;
        Self::with_pattern(Arc::new(pattern), values)
    }

    /// Other values on a pattern that exists.
    pub fn with_pattern(pattern: Arc<Pattern>, values: impl Into<Cow<'a, [T]>>) -> Result<Self> {
        pattern.must_be_of_the_cpu()?;
        let values = values.into();
        if values.len() != pattern.stored() {
            return invalid(format!(
                "values must have the {} elements of the stored blocks, got {}",
                pattern.stored(),
                values.len()
            ));
        }
        Ok(BsrMatrix { pattern, values })
    }

    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern
    }
    pub fn values(&self) -> &[T] {
        &self.values
    }

    fn raw(
        &self,
        dense: &Dense<'_, T>,
        bias: Option<&[T]>,
        result: *mut T,
        result_layout: Layout,
        options: &Options,
    ) -> Result<RawProduct> {
        let (rows, cols) = self.pattern.size(options);
        let expected = if options.sparse_right { cols } else { rows };
        if let Some(bias) = bias {
            if bias.len() != expected {
                return invalid(format!(
                    "bias must have the {expected} entries of the result, got {}",
                    bias.len()
                ));
            }
        }
        Ok(RawProduct {
            values: self.values.as_ptr().cast(),
            dense: dense.data.as_ptr().cast(),
            dense_layout: dense.layout,
            bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().cast()),
            result: result.cast(),
            result_layout,
            stream: Stream::default(),
        })
    }

    /// `result = activation(op(A) @ dense + bias)`, or with `sparse_right` the dense matrix first.
    pub fn matmul_into(
        &self,
        dense: Dense<'_, T>,
        bias: Option<&[T]>,
        result: DenseMut<'_, T>,
        options: &Options,
    ) -> Result<()> {
        let raw = self.raw(
            &dense,
            bias,
            result.data.as_mut_ptr(),
            result.layout,
            options,
        )?;
        // SAFETY: slices hold all elements of their layouts, the result is borrowed alone, and a
        // product on the CPU is over when it returns.
        unsafe { self.pattern.matmul_raw::<T>(&raw, options) }
    }

    /// `A @ dense`, rows one after another.
    pub fn matmul(&self, dense: Dense<'_, T>) -> Result<Vec<T>> {
        let layout = dense.layout();
        let (rows, cols) = (self.pattern.rows(), layout.cols);
        let mut result = zeros(rows, cols, layout.batch)?;
        let written = Layout::row_major(rows, cols).batched(layout.batch);
        let target = DenseMut::new(&mut result, written)?;
        self.matmul_into(dense, None, target, &Options::default())?;
        Ok(result)
    }

    /// A linear layer whose weight this matrix is: `activation(x @ A^T + bias)`, `x` being tokens x
    /// columns of A and the result tokens x rows of A.
    pub fn linear(
        &self,
        x: Dense<'_, T>,
        bias: Option<&[T]>,
        activation: Activation,
    ) -> Result<Vec<T>> {
        let layout = x.layout();
        let (tokens, features) = (layout.rows, self.pattern.rows());
        let mut result = zeros(tokens, features, layout.batch)?;
        let written = Layout::row_major(tokens, features).batched(layout.batch);
        let options = Options {
            sparse_right: true,
            transpose: true,
            activation,
            ..Options::default()
        };
        self.matmul_into(x, bias, DenseMut::new(&mut result, written)?, &options)?;
        Ok(result)
    }

    /// Races `variants` (names or families, comma-separated; `None`: all that are legal) on operands
    /// like these, `A @ dense`, and says how each fared. Nothing is remembered.
    pub fn benchmark(&self, dense: Dense<'_, T>, variants: Option<&str>) -> Result<Report> {
        let layout = dense.layout();
        // A race reads no result, but its layout and alignment count.
        let mut like = zeros(self.pattern.rows(), layout.cols, layout.batch)?;
        let written = Layout::row_major(self.pattern.rows(), layout.cols).batched(layout.batch);
        let options = Options::default();
        let raw = self.raw(&dense, None, like.as_mut_ptr(), written, &options)?;
        let Ok(variants) = variants.map(CString::new).transpose() else {
            return invalid("variants must be names");
        };
        let order = sparse_autotune_sys::RaceOptions {
            struct_size: std::mem::size_of::<sparse_autotune_sys::RaceOptions>(),
            variants: variants
                .as_ref()
                .map_or(std::ptr::null(), |names| names.as_ptr()),
            rounds: 0,
            budget_s: 0.0,
            keep_all: 0,
            save: 0,
            dry_run: 0,
            reserved: 0,
        };
        let api = self.pattern.context.shared.api;
        self.pattern
            .with_product::<T, _>(&raw, &options, |product| {
                let mut record = std::ptr::null_mut();
                // SAFETY: as in `matmul_into`; the record is given back below.
                unsafe {
                    check(
                        api,
                        (api.sparse_autotune_race_matmul)(
                            self.pattern.handle,
                            product,
                            &order,
                            &mut record,
                        ),
                    )?;
                    let report = Report::read(api, record);
                    (api.sparse_autotune_record_destroy)(record);
                    report
                }
            })
    }
}

impl<T: Element> std::fmt::Debug for BsrMatrix<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let p = &self.pattern;
        write!(
            f,
            "BsrMatrix({} x {}, {} blocks of {:?})",
            p.rows, p.cols, p.nnzb, p.block
        )
    }
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<BsrMatrix<'static, f32>>();
    shared::<Error>();
};
