//! Declarations of `include/sparse_autotune.h`. Nothing is linked at build time: [`api`] loads
//! `libsparse_autotune_core.so` when it is first asked for, from the folder that the environment
//! variable `SPARSE_AUTOTUNE_LIB_DIR` names (when the program runs, else when it was compiled),
//! else from where the loader looks.
//!
//! The crate `sparse-autotune` is the safe interface.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, CStr, CString};
use std::sync::OnceLock;

#[link(name = "dl")]
extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

macro_rules! declare {
    ($($name:ident: fn($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library. Each is as the header describes it.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,)*
        }
        impl Api {
            unsafe fn of(library: *mut c_void) -> Result<Api, String> {
                Ok(Api { $($name: std::mem::transmute::<*mut c_void, _>(
                    symbol(library, stringify!($name))?),)* })
            }
        }
    };
}

include!("bindings.rs");

const FILE: &str = "libsparse_autotune_core.so";

unsafe fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    let found = dlsym(library, text.as_ptr());
    if found.is_null() {
        return Err(format!(
            "{FILE} has no function {name}: it is of another version"
        ));
    }
    Ok(found)
}

fn path() -> String {
    let folder = std::env::var("SPARSE_AUTOTUNE_LIB_DIR").ok();
    match folder.as_deref().or(option_env!("SPARSE_AUTOTUNE_LIB_DIR")) {
        Some(folder) if !folder.is_empty() => format!("{folder}/{FILE}"),
        _ => FILE.to_string(),
    }
}

fn load() -> Result<Api, String> {
    let path = path();
    let text = CString::new(path.as_str()).map_err(|_| format!("the path {path:?} has a zero"))?;
    // SAFETY: both are called as libc declares them. Code of ours runs when the library is loaded,
    // and only registers what it has.
    let api = unsafe {
        let library = dlopen(text.as_ptr(), RTLD_NOW);
        if library.is_null() {
            let why = CStr::from_ptr(dlerror()).to_string_lossy().into_owned();
            return Err(format!(
                "{why} (set SPARSE_AUTOTUNE_LIB_DIR to the folder of {FILE})"
            ));
        }
        Api::of(library)?
    };
    // SAFETY: it takes nothing.
    let version = unsafe { (api.sparse_autotune_abi_version)() };
    if version != ABI_VERSION {
        return Err(format!(
            "{path} has the C interface in version {version}, this crate needs {ABI_VERSION}"
        ));
    }
    Ok(api)
}

/// The library, loaded once; else why it could not be.
pub fn api() -> Result<&'static Api, &'static str> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the header's own test wrote down of each struct.
    #[test]
    fn sizes_are_those_of_the_abi() {
        let abi = include_str!("../../../tests/native/abi_1.txt");
        let told: Vec<(&str, usize)> = abi
            .lines()
            .filter_map(|line| line.strip_prefix("struct "))
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, size)| (name, size.parse().unwrap()))
            .collect();
        assert_eq!(told, SIZES);
        assert!(abi.starts_with(&format!("version {ABI_VERSION}\n")));
    }

    #[test]
    fn the_library_is_of_this_version() {
        let api = api().unwrap();
        // SAFETY: it takes nothing and returns a text that is never freed.
        let version = unsafe { CStr::from_ptr((api.sparse_autotune_version)()) };
        assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    }
}
