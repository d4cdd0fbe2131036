use crate::error::{check, Result};
use sparse_autotune_sys as sys;
use std::ffi::{c_char, CStr};

/// How a variant fared in a race. Only one that is `Right` can win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Right,
    NotLegal,
    Skipped,
    Eliminated,
    NoMemory,
    LaunchFailed,
    Wrong,
}

#[derive(Debug, Clone)]
pub struct Entrant {
    /// `family/configuration`.
    pub name: String,
    pub outcome: Outcome,
    /// Of one launch; 0: not timed.
    pub median_us: f64,
    /// The largest error as a share of what is allowed.
    pub error: f64,
    /// Why it did not race, or left early.
    pub reason: String,
}

/// What a race found out.
#[derive(Debug, Clone)]
pub struct Report {
    pub problem: String,
    pub device: String,
    /// Empty where there is none.
    pub winner: String,
    /// Floating-point operations on stored blocks.
    pub nnz_flops: f64,
    /// Fastest first, then those without a time.
    pub entrants: Vec<Entrant>,
}

/// # Safety
/// `text` ends in 0.
unsafe fn owned(text: *const c_char) -> String {
    CStr::from_ptr(text).to_string_lossy().into_owned()
}

impl Report {
    /// The winner, and its rate on stored blocks in TFLOP/s.
    pub fn best(&self) -> Option<(&Entrant, f64)> {
        let best = self
            .entrants
            .iter()
            .find(|entrant| entrant.name == self.winner)?;
        Some((best, self.nnz_flops / best.median_us * 1e-6))
    }

    /// # Safety
    /// `record` is one of the library's.
    pub(crate) unsafe fn read(api: &sys::Api, record: *const sys::Record) -> Result<Self> {
        let mut info: sys::RecordInfo = std::mem::zeroed();
        info.struct_size = std::mem::size_of::<sys::RecordInfo>();
        check(
            api,
            (api.sparse_autotune_record_describe)(record, &mut info),
        )?;
        let mut entrants = Vec::new();
        for index in 0..info.entrants {
            let mut e: sys::Entrant = std::mem::zeroed();
            e.struct_size = std::mem::size_of::<sys::Entrant>();
            check(
                api,
                (api.sparse_autotune_record_entrant)(record, index, &mut e),
            )?;
            entrants.push(Entrant {
                name: owned(e.name),
                outcome: match e.outcome {
                    sys::RIGHT => Outcome::Right,
                    sys::NOT_LEGAL => Outcome::NotLegal,
                    sys::SKIPPED => Outcome::Skipped,
                    sys::ELIMINATED => Outcome::Eliminated,
                    sys::NO_MEMORY => Outcome::NoMemory,
                    sys::LAUNCH_FAILED => Outcome::LaunchFailed,
                    _ => Outcome::Wrong,
                },
                median_us: e.median_us,
                error: e.error,
                reason: owned(e.reason),
            });
        }
        Ok(Report {
            problem: owned(info.problem),
            device: owned(info.device),
            winner: owned(info.winner),
            nnz_flops: info.nnz_flops,
            entrants,
        })
    }
}
