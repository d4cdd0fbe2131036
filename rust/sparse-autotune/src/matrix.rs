use crate::element::Element;
use crate::error::{invalid, Result};
use sparse_autotune_sys as sys;

/// Where the elements of a dense matrix, or of a batch of them, lie in a slice or in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row to the next, and from one column to the next. One of them is 1, and
    /// none is 0.
    pub row_stride: usize,
    pub col_stride: usize,
    /// Matrices, `batch_stride` elements apart; at least 1. A stride of 0 means one matrix for all.
    pub batch: usize,
    pub batch_stride: usize,
}

impl Layout {
    /// Rows one after another.
    pub fn row_major(rows: usize, cols: usize) -> Self {
        Layout {
            rows,
            cols,
            row_stride: cols.max(1),
            col_stride: 1,
            batch: 1,
            batch_stride: 0,
        }
    }

    /// Columns one after another.
    pub fn col_major(rows: usize, cols: usize) -> Self {
        Layout {
            rows,
            cols,
            row_stride: 1,
            col_stride: rows.max(1),
            batch: 1,
            batch_stride: 0,
        }
    }

    /// So many of them, one behind the other.
    pub fn batched(self, batch: usize) -> Self {
        Layout {
            batch,
            batch_stride: self.rows.saturating_mul(self.cols),
            ..self
        }
    }

    /// Elements from the first to the last; `None` where that is no number.
    pub fn span(&self) -> Option<usize> {
        if self.rows == 0 || self.cols == 0 || self.batch == 0 {
            return Some(0);
        }
        let row = (self.rows - 1).checked_mul(self.row_stride)?;
        let col = (self.cols - 1).checked_mul(self.col_stride)?;
        let batch = (self.batch - 1).checked_mul(self.batch_stride)?;
        row.checked_add(col)?.checked_add(batch)?.checked_add(1)
    }

    pub(crate) fn checked(&self, name: &str, elements: usize) -> Result<()> {
        match self.span() {
            Some(span) if span <= elements && self.batch > 0 => Ok(()),
            _ => invalid(format!(
                "{name} must have all elements of its layout, {self:?}, in its memory; it has {elements}"
            )),
        }
    }

    pub(crate) fn with_memory(&self, data: *mut std::ffi::c_void) -> Result<sys::Dense> {
        // The C interface gives zeros a meaning that `span` does not know.
        if self.row_stride == 0 || self.col_stride == 0 || self.batch == 0 {
            return invalid(format!(
                "a layout's strides and its batch must be positive, got {self:?}"
            ));
        }
        let number = |value: usize| match i64::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) => invalid(format!("a layout must fit into 63 bits, got {self:?}")),
        };
        Ok(sys::Dense {
            data,
            rows: number(self.rows)?,
            cols: number(self.cols)?,
            row_stride: number(self.row_stride)?,
            col_stride: number(self.col_stride)?,
            batch: number(self.batch)?,
            batch_stride: number(self.batch_stride)?,
        })
    }
}

/// A dense matrix, or a batch of them, that is read.
#[derive(Clone, Copy)]
pub struct Dense<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) layout: Layout,
}

impl<'a, T: Element> Dense<'a, T> {
    /// Fails where the slice is shorter than the layout.
    pub fn new(data: &'a [T], layout: Layout) -> Result<Self> {
        layout.checked("a dense matrix", data.len())?;
        Ok(Dense { data, layout })
    }

    /// Rows one after another.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Result<Self> {
        Self::new(data, Layout::row_major(rows, cols))
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }
}

/// One that is written. Elements of the slice between its rows are left alone.
pub struct DenseMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) layout: Layout,
}

impl<'a, T: Element> DenseMut<'a, T> {
    /// Fails where the slice is shorter than the layout.
    pub fn new(data: &'a mut [T], layout: Layout) -> Result<Self> {
        layout.checked("a result", data.len())?;
        Ok(DenseMut { data, layout })
    }

    /// Rows one after another.
    pub fn row_major(data: &'a mut [T], rows: usize, cols: usize) -> Result<Self> {
        Self::new(data, Layout::row_major(rows, cols))
    }
}
