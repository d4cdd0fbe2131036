use sparse_autotune_sys as sys;

mod sealed {
    pub trait Sealed {}
}

/// A number that matrices may hold: `f32`, `f64`, [`F16`], [`Bf16`].
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    #[doc(hidden)]
    const DTYPE: i32;
}

/// IEEE half precision, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// bfloat16, the upper half of an `f32`, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounded to the nearest, ties to even.
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        if x.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

macro_rules! elements {
    ($($kind:ty: $dtype:ident),*) => {
        $(impl sealed::Sealed for $kind {}
        impl Element for $kind {
            const DTYPE: i32 = sys::$dtype;
        })*
    };
}
elements!(f32: FLOAT32, f64: FLOAT64, F16: FLOAT16, Bf16: BFLOAT16);

/// A number that indices may be: `i32`, `i64`.
pub trait Index: sealed::Sealed + Copy + 'static {
    #[doc(hidden)]
    const TYPE: i32;
}
impl sealed::Sealed for i32 {}
impl sealed::Sealed for i64 {}
impl Index for i32 {
    const TYPE: i32 = sys::INT32;
}
impl Index for i64 {
    const TYPE: i32 = sys::INT64;
}
