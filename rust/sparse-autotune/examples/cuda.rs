//! Products on a CUDA device, on memory that another library owns: here the driver's, which is
//! loaded when the program runs. Checked against the same products on the CPU.
use sparse_autotune::{
    BsrMatrix, Context, Dense, Layout, Options, Pattern, RawProduct, RawSampledProduct, Stream,
};
use std::ffi::{c_char, c_int, c_uint, c_void, CString};

#[link(name = "dl")]
extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Failure = Box<dyn std::error::Error>;

/// What is used of libcuda.so.1; each returns 0 where it succeeds.
struct Driver {
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
}

fn must(result: c_int) -> Result<(), Failure> {
    match result {
        0 => Ok(()),
        _ => Err(format!("CUDA's driver fails with {result}").into()),
    }
}

impl Driver {
    /// With the first device's primary context as this thread's.
    fn load() -> Result<Self, Failure> {
        // SAFETY: each function is called as cuda.h declares it.
        unsafe {
            let library = dlopen(CString::new("libcuda.so.1")?.as_ptr(), 2);
            if library.is_null() {
                return Err("there is no NVIDIA driver".into());
            }
            let find = |name: &str| -> Result<*mut c_void, Failure> {
                let found = dlsym(library, CString::new(name)?.as_ptr());
                match found.is_null() {
                    true => Err(format!("the NVIDIA driver has no {name}").into()),
                    false => Ok(found),
                }
            };
            use std::mem::transmute;
            let init: unsafe extern "C" fn(c_uint) -> c_int = transmute(find("cuInit")?);
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                transmute(find("cuDevicePrimaryCtxRetain")?);
            let set: unsafe extern "C" fn(*mut c_void) -> c_int =
                transmute(find("cuCtxSetCurrent")?);
            let mut context = std::ptr::null_mut();
            must(init(0))?;
            must(retain(&mut context, 0))?;
            must(set(context))?;
            Ok(Driver {
                allocate: transmute::<*mut c_void, _>(find("cuMemAlloc_v2")?),
                free: transmute::<*mut c_void, _>(find("cuMemFree_v2")?),
                to_device: transmute::<*mut c_void, _>(find("cuMemcpyHtoD_v2")?),
                to_host: transmute::<*mut c_void, _>(find("cuMemcpyDtoH_v2")?),
            })
        }
    }
}

/// Floats on the device.
struct Floats<'a> {
    driver: &'a Driver,
    address: u64,
    count: usize,
}

impl<'a> Floats<'a> {
    fn new(driver: &'a Driver, from: &[f32]) -> Result<Self, Failure> {
        let mut address = 0;
        // SAFETY: the memory is as long as what is copied.
        unsafe {
            must((driver.allocate)(&mut address, 4 * from.len()))?;
            must((driver.to_device)(
                address,
                from.as_ptr().cast(),
                4 * from.len(),
            ))?;
        }
        let count = from.len();
        Ok(Floats {
            driver,
            address,
            count,
        })
    }
    fn pointer(&self) -> *mut c_void {
        self.address as *mut c_void
    }
    /// Waits for what the default stream was given.
    fn on_host(&self) -> Result<Vec<f32>, Failure> {
        let mut copied = vec![f32::NAN; self.count];
        // SAFETY: both are of that length.
        must(unsafe {
            (self.driver.to_host)(copied.as_mut_ptr().cast(), self.address, 4 * self.count)
        })?;
        Ok(copied)
    }
}

impl Drop for Floats<'_> {
    fn drop(&mut self) {
        // SAFETY: it is one of the driver's, and freed once; copies to the host were waited for.
        unsafe { (self.driver.free)(self.address) };
    }
}

fn main() -> Result<(), Failure> {
    let (size, block, columns) = (1024, 64, 256);
    let blocks = size / block;
    // Every fourth block; whole numbers, of which every sum is exact.
    let (mut crow, mut col) = (vec![0i32], Vec::new());
    for row in 0..blocks {
        col.extend((0..blocks).filter(|c| (row + c) % 4 == 0).map(|c| c as i32));
        crow.push(col.len() as i32);
    }
    let numbers = |count: usize| -> Vec<f32> { (0..count).map(|i| (i % 7) as f32 - 3.0).collect() };
    let values = numbers(col.len() * block * block);
    let (b, y) = (numbers(size * columns), numbers(columns * size));

    let cpu = Context::cpu()?;
    let shape = ((size, size), (block, block));
    let a = BsrMatrix::new(&cpu, shape.0, shape.1, &crow, &col, values.as_slice())?;
    let expected = a.matmul(Dense::row_major(&b, size, columns)?)?;
    let mut sampled = vec![f32::NAN; values.len()];
    let left = Dense::row_major(&b, size, columns)?;
    a.pattern()
        .sampled_matmul(left, Dense::row_major(&y, columns, size)?, &mut sampled)?;

    let gpu = Context::cuda(0)?;
    let driver = Driver::load()?;
    let pattern = Pattern::new(&gpu, shape.0, shape.1, &crow, &col)?;
    let (device_values, device_b) = (Floats::new(&driver, &values)?, Floats::new(&driver, &b)?);
    let device_y = Floats::new(&driver, &y)?;
    let result = Floats::new(&driver, &vec![f32::NAN; size * columns])?;
    let at_blocks = Floats::new(&driver, &vec![f32::NAN; values.len()])?;
    let product = RawProduct {
        values: device_values.pointer(),
        dense: device_b.pointer(),
        dense_layout: Layout::row_major(size, columns),
        bias: std::ptr::null(),
        result: result.pointer(),
        result_layout: Layout::row_major(size, columns),
        stream: Stream::default(),
    };
    let gradient = RawSampledProduct {
        x: device_b.pointer(),
        x_layout: Layout::row_major(size, columns),
        y: device_y.pointer(),
        y_layout: Layout::row_major(columns, size),
        values: at_blocks.pointer(),
        stream: Stream::default(),
    };
    // SAFETY: all memory is of the device and as long as its layout; copies to the host wait.
    unsafe {
        pattern.matmul_raw::<f32>(&product, &Options::default())?;
        pattern.sampled_matmul_raw::<f32>(&gradient)?;
    }
    if result.on_host()? != expected || at_blocks.on_host()? != sampled {
        return Err("the results differ from those of the CPU".into());
    }
    println!("{} agrees with {}", gpu.device()?.name, cpu.device()?.name);
    Ok(())
}
