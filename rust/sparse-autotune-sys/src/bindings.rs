// Written by tests/native_header.py from include/sparse_autotune.h; a test compares.
use std::ffi::{c_char, c_void};

/// Of the header that these declarations are of.
pub const ABI_VERSION: u32 = 1;
pub const OK: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 1;
pub const INVALID_PATTERN: i32 = 2;
pub const UNSUPPORTED: i32 = 3;
pub const OUT_OF_MEMORY: i32 = 4;
pub const WORKSPACE_TOO_SMALL: i32 = 5;
pub const NO_DEVICE: i32 = 6;
pub const IO: i32 = 7;
pub const FAILED: i32 = 8;
pub const CPU: i32 = 0;
pub const CUDA: i32 = 1;
pub const FLOAT16: i32 = 0;
pub const BFLOAT16: i32 = 1;
pub const FLOAT32: i32 = 2;
pub const FLOAT64: i32 = 3;
pub const INT32: i32 = 0;
pub const INT64: i32 = 1;
pub const NONE: i32 = 0;
pub const RELU: i32 = 1;
pub const GELU: i32 = 2;
pub const GELU_TANH: i32 = 3;
pub const SILU: i32 = 4;
pub const ON: i32 = 0;
pub const OFF: i32 = 1;
pub const READONLY: i32 = 2;
pub const RECORD: i32 = 3;
pub const RIGHT: i32 = 0;
pub const NOT_LEGAL: i32 = 1;
pub const SKIPPED: i32 = 2;
pub const ELIMINATED: i32 = 3;
pub const NO_MEMORY: i32 = 4;
pub const LAUNCH_FAILED: i32 = 5;
pub const WRONG: i32 = 6;

#[repr(C)]
pub struct Context {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Pattern {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Record {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Settings {
    pub struct_size: usize,
    pub mode: i32,
    pub verbosity: i32,
    pub budget_s: f64,
    pub plan_bytes: i64,
    pub frozen_bytes: i64,
    pub tuning_bytes: i64,
    pub exact_nonfinite: i32,
    pub warm: i32,
    pub variant: *const c_char,
    pub cache_directory: *const c_char,
    pub torch_version: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextOptions {
    pub struct_size: usize,
    pub device_type: i32,
    pub ordinal: i32,
    pub threads: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceInfo {
    pub struct_size: usize,
    pub device_type: i32,
    pub ordinal: i32,
    pub threads: i32,
    pub compute_capability: i32,
    pub multiprocessors: i32,
    pub reserved: i32,
    pub memory_bytes: i64,
    pub name: *const c_char,
    pub device_class: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PatternDescription {
    pub struct_size: usize,
    pub rows: i64,
    pub cols: i64,
    pub block_rows: i64,
    pub block_cols: i64,
    pub nnzb: i64,
    pub crow_indices: *const c_void,
    pub col_indices: *const c_void,
    pub index_type: i32,
    pub reserved: i32,
    pub stream: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dense {
    pub data: *mut c_void,
    pub rows: i64,
    pub cols: i64,
    pub row_stride: i64,
    pub col_stride: i64,
    pub batch: i64,
    pub batch_stride: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Product {
    pub struct_size: usize,
    pub values: *const c_void,
    pub dtype: i32,
    pub activation: i32,
    pub dense: Dense,
    pub result: Dense,
    pub bias: *const c_void,
    pub sparse_right: i32,
    pub transpose: i32,
    pub frozen: i32,
    pub allow_tf32: i32,
    pub deterministic: i32,
    pub reserved: i32,
    pub variant: *const c_char,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SampledProduct {
    pub struct_size: usize,
    pub values: *mut c_void,
    pub dtype: i32,
    pub allow_tf32: i32,
    pub deterministic: i32,
    pub reserved: i32,
    pub x: Dense,
    pub y: Dense,
    pub variant: *const c_char,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RaceOptions {
    pub struct_size: usize,
    pub variants: *const c_char,
    pub rounds: i64,
    pub budget_s: f64,
    pub keep_all: i32,
    pub save: i32,
    pub dry_run: i32,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordInfo {
    pub struct_size: usize,
    pub signature: *const c_char,
    pub device: *const c_char,
    pub problem: *const c_char,
    pub winner: *const c_char,
    pub failure: *const c_char,
    pub when: *const c_char,
    pub seconds: f64,
    pub nnz_flops: f64,
    pub dense_flops: f64,
    pub limit_us: f64,
    pub entrants: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entrant {
    pub struct_size: usize,
    pub name: *const c_char,
    pub reason: *const c_char,
    pub outcome: i32,
    pub reserved: i32,
    pub expected_us: f64,
    pub median_us: f64,
    pub spread_us: f64,
    pub error: f64,
    pub samples: i64,
    pub memory_bytes: i64,
}

/// The size of each struct, by its name in C.
pub const SIZES: &[(&str, usize)] = &[
    ("sparse_autotune_settings", std::mem::size_of::<Settings>()),
    ("sparse_autotune_context_options", std::mem::size_of::<ContextOptions>()),
    ("sparse_autotune_device_info", std::mem::size_of::<DeviceInfo>()),
    ("sparse_autotune_pattern_description", std::mem::size_of::<PatternDescription>()),
    ("sparse_autotune_dense", std::mem::size_of::<Dense>()),
    ("sparse_autotune_product", std::mem::size_of::<Product>()),
    ("sparse_autotune_sampled_product", std::mem::size_of::<SampledProduct>()),
    ("sparse_autotune_race_options", std::mem::size_of::<RaceOptions>()),
    ("sparse_autotune_record_info", std::mem::size_of::<RecordInfo>()),
    ("sparse_autotune_entrant", std::mem::size_of::<Entrant>()),
];

declare! {
    sparse_autotune_abi_version: fn() -> u32;
    sparse_autotune_version: fn() -> *const c_char;
    sparse_autotune_error_message: fn() -> *const c_char;
    sparse_autotune_status_name: fn(status: i32) -> *const c_char;
    sparse_autotune_set_settings: fn(settings: *const Settings) -> i32;
    sparse_autotune_context_create: fn(options: *const ContextOptions, context: *mut *mut Context) -> i32;
    sparse_autotune_context_destroy: fn(context: *mut Context);
    sparse_autotune_context_device: fn(context: *const Context, info: *mut DeviceInfo) -> i32;
    sparse_autotune_pattern_create: fn(context: *mut Context, description: *const PatternDescription, pattern: *mut *mut Pattern) -> i32;
    sparse_autotune_pattern_destroy: fn(pattern: *mut Pattern);
    sparse_autotune_pattern_thaw: fn(pattern: *mut Pattern, values: *const c_void) -> i32;
    sparse_autotune_matmul: fn(pattern: *mut Pattern, product: *const Product) -> i32;
    sparse_autotune_matmul_workspace: fn(pattern: *mut Pattern, product: *const Product, bytes: *mut i64) -> i32;
    sparse_autotune_sampled_matmul: fn(pattern: *mut Pattern, product: *const SampledProduct) -> i32;
    sparse_autotune_sampled_matmul_workspace: fn(pattern: *mut Pattern, product: *const SampledProduct, bytes: *mut i64) -> i32;
    sparse_autotune_race_matmul: fn(pattern: *mut Pattern, product: *const Product, options: *const RaceOptions, record: *mut *mut Record) -> i32;
    sparse_autotune_race_sampled_matmul: fn(pattern: *mut Pattern, product: *const SampledProduct, options: *const RaceOptions, record: *mut *mut Record) -> i32;
    sparse_autotune_find_record: fn(pattern: *mut Pattern, product: *const Product, record: *mut *mut Record) -> i32;
    sparse_autotune_record_destroy: fn(record: *mut Record);
    sparse_autotune_record_describe: fn(record: *const Record, info: *mut RecordInfo) -> i32;
    sparse_autotune_record_entrant: fn(record: *const Record, index: i64, entrant: *mut Entrant) -> i32;
    sparse_autotune_tuning_count: fn() -> i64;
    sparse_autotune_bundle_export: fn(path: *const c_char, entries: *mut i64) -> i32;
    sparse_autotune_bundle_load: fn(path: *const c_char, entries: *mut i64) -> i32;
}
