use sparse_autotune_sys as sys;
use std::ffi::CStr;
use std::fmt;

/// Why a call failed. The text names the argument, the rule and the value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    InvalidArgument(String),
    /// The indices break a rule of BSR.
    InvalidPattern(String),
    /// No variant may run this, or not the one asked for.
    Unsupported(String),
    OutOfMemory(String),
    WorkspaceTooSmall(String),
    NoDevice(String),
    Io(String),
    /// A launch or the CUDA runtime failed.
    Failed(String),
    /// `libsparse_autotune_core.so` could not be loaded.
    Library(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn text(&self) -> &str {
        match self {
            Error::InvalidArgument(text)
            | Error::InvalidPattern(text)
            | Error::Unsupported(text)
            | Error::OutOfMemory(text)
            | Error::WorkspaceTooSmall(text)
            | Error::NoDevice(text)
            | Error::Io(text)
            | Error::Failed(text)
            | Error::Library(text) => text,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

pub(crate) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::InvalidArgument(text.into()))
}

pub(crate) fn api() -> Result<&'static sys::Api> {
    sys::api().map_err(|why| Error::Library(why.to_string()))
}

/// A status of this thread's last call.
pub(crate) fn check(api: &sys::Api, status: i32) -> Result<()> {
    if status == sys::OK {
        return Ok(());
    }
    // SAFETY: the text is never null and belongs to this thread, which makes no other call now.
    let text = unsafe { CStr::from_ptr((api.sparse_autotune_error_message)()) };
    let text = text.to_string_lossy().into_owned();
    Err(match status {
        sys::INVALID_ARGUMENT => Error::InvalidArgument(text),
        sys::INVALID_PATTERN => Error::InvalidPattern(text),
        sys::UNSUPPORTED => Error::Unsupported(text),
        sys::OUT_OF_MEMORY => Error::OutOfMemory(text),
        sys::WORKSPACE_TOO_SMALL => Error::WorkspaceTooSmall(text),
        sys::NO_DEVICE => Error::NoDevice(text),
        sys::IO => Error::Io(text),
        _ => Error::Failed(text),
    })
}
