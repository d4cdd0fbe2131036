use crate::error::{api, check, Result};
use sparse_autotune_sys as sys;
use std::ffi::{c_void, CStr};
use std::sync::Arc;

/// A device to compute on. Cheap to clone; clones are the same context.
#[derive(Clone)]
pub struct Context {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) api: &'static sys::Api,
    pub(crate) handle: *mut sys::Context,
    pub(crate) is_cuda: bool,
}
// SAFETY: the C interface lets several threads use a context, and any one destroy it in the end.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nobody else has it: patterns hold a clone.
        unsafe { (self.api.sparse_autotune_context_destroy)(self.handle) }
    }
}

/// What a context knows of its device.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    pub name: String,
    /// What records of this device are filed under.
    pub class: String,
    /// Of a CPU.
    pub threads: i32,
    /// 90 for sm_90; 0 for a CPU.
    pub compute_capability: i32,
    pub memory_bytes: i64,
}

impl Context {
    /// The CPU with all the threads that the process may use.
    pub fn cpu() -> Result<Self> {
        Self::cpu_with_threads(0)
    }

    /// The CPU with so many threads, the calling one included; 0: all.
    pub fn cpu_with_threads(threads: i32) -> Result<Self> {
        Self::new(sys::CPU, 0, threads)
    }

    /// The CUDA device of that ordinal. Its operands are device memory: see
    /// [`Pattern::matmul_raw`](crate::Pattern::matmul_raw).
    pub fn cuda(ordinal: i32) -> Result<Self> {
        Self::new(sys::CUDA, ordinal, 0)
    }

    fn new(device_type: i32, ordinal: i32, threads: i32) -> Result<Self> {
        let api = api()?;
        let options = sys::ContextOptions {
            struct_size: std::mem::size_of::<sys::ContextOptions>(),
            device_type,
            ordinal,
            threads,
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: both are valid for the call.
        check(api, unsafe {
            (api.sparse_autotune_context_create)(&options, &mut handle)
        })?;
        let is_cuda = device_type == sys::CUDA;
        Ok(Context {
            shared: Arc::new(Shared {
                api,
                handle,
                is_cuda,
            }),
        })
    }

    pub fn device(&self) -> Result<DeviceInfo> {
        let api = self.shared.api;
        // SAFETY: zero is a value of each member, pointers included.
        let mut info: sys::DeviceInfo = unsafe { std::mem::zeroed() };
        info.struct_size = std::mem::size_of::<sys::DeviceInfo>();
        // SAFETY: both are valid for the call; the texts live as long as the context.
        unsafe {
            check(
                api,
                (api.sparse_autotune_context_device)(self.shared.handle, &mut info),
            )?;
            Ok(DeviceInfo {
                name: CStr::from_ptr(info.name).to_string_lossy().into_owned(),
                class: CStr::from_ptr(info.device_class)
                    .to_string_lossy()
                    .into_owned(),
                threads: info.threads,
                compute_capability: info.compute_capability,
                memory_bytes: info.memory_bytes,
            })
        }
    }
}

/// A `cudaStream_t`; the default one unless it is said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub *mut c_void);

impl Default for Stream {
    fn default() -> Self {
        Stream(std::ptr::null_mut())
    }
}
