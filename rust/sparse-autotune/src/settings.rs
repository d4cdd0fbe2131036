use crate::error::{api, check, invalid, Result};
use sparse_autotune_sys as sys;
use std::ffi::{c_char, CString};

/// When products race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum Mode {
    /// A miss races and remembers.
    #[default]
    On = sys::ON,
    /// The heuristic alone decides.
    Off = sys::OFF,
    /// The cache decides, else the heuristic; never races, never writes.
    Readonly = sys::READONLY,
}

/// Settings of the process. What is not given is the default.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub mode: Mode,
    /// A line to stderr for each race, and warnings.
    pub verbose: bool,
    /// Of one race, seconds; 0: 1.
    pub budget_s: f64,
    /// Where winners are kept; `Some("")`: in memory only.
    pub cache_directory: Option<String>,
}

impl Settings {
    /// Takes effect at the next product of any thread.
    pub fn apply(&self) -> Result<()> {
        let api = api()?;
        let Ok(directory) = self
            .cache_directory
            .as_deref()
            .map(CString::new)
            .transpose()
        else {
            return invalid(format!(
                "cache_directory must be a path, got {:?}",
                self.cache_directory
            ));
        };
        // SAFETY: zero is a value of each member, pointers included.
        let mut settings: sys::Settings = unsafe { std::mem::zeroed() };
        settings.struct_size = std::mem::size_of::<sys::Settings>();
        settings.mode = self.mode as i32;
        settings.verbosity = self.verbose.into();
        settings.budget_s = self.budget_s;
        settings.cache_directory = directory
            .as_ref()
            .map_or(std::ptr::null::<c_char>(), |path| path.as_ptr());
        // SAFETY: it is valid for the call, as is the text.
        check(api, unsafe {
            (api.sparse_autotune_set_settings)(&settings)
        })
    }
}

/// How many races this process has run for products.
pub fn tuning_count() -> Result<i64> {
    let api = api()?;
    // SAFETY: it takes nothing.
    Ok(unsafe { (api.sparse_autotune_tuning_count)() })
}
