/* sparse_autotune without Python: block-sparse (BSR) x dense products that race every kernel which
 * can compute them, verify the winner and remember it. The library is libsparse_autotune_core.so.
 *
 * Conventions, for every function that returns a sparse_autotune_status:
 *  - 0 is success. After a failure sparse_autotune_error_message() names, on the same thread, the
 *    argument, the rule and the value. Results are then unchanged, unless a launch had begun.
 *  - Nothing throws and nothing is printed, except by settings.verbosity = 1, to stderr.
 *  - Every struct begins with struct_size, which SPARSE_AUTOTUNE_INIT(type) sets; the other members
 *    are zero then, and zero is the default of each. A newer library takes older structs, and an
 *    older library newer ones as long as what it does not know is zero.
 *  - Text is UTF-8 or ASCII, ends in 0, and is read before the function returns.
 *  - Contexts may be used from several threads at once, and so may patterns; each is destroyed
 *    once, by one thread, when no other uses it. Patterns do not outlive their context.
 *  - CUDA: `stream` is a cudaStream_t. The context's device becomes current within a call and the
 *    one of before is restored. Products only enqueue work, except that the first of a kind races
 *    and then waits for it. While a stream is captured into a graph, nothing is measured: run the
 *    product once before. Addresses of operands are device memory.
 *  - Settings, records in memory and the count of races belong to the process, as in Python; where
 *    Python's package is loaded too, its settings and its cache serve both. */
#ifndef SPARSE_AUTOTUNE_H
#define SPARSE_AUTOTUNE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SPARSE_AUTOTUNE_EXPORT __attribute__((visibility("default")))
#else
#define SPARSE_AUTOTUNE_EXPORT
#endif

#ifdef __cplusplus
#define SPARSE_AUTOTUNE_INIT(type) \
  type { sizeof(type) }
#else
#define SPARSE_AUTOTUNE_INIT(type) \
  { sizeof(type) }
#endif

/* Raised with every change of a struct, an enumeration or a function below. */
#define SPARSE_AUTOTUNE_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t sparse_autotune_status;
enum {
  SPARSE_AUTOTUNE_OK = 0,
  SPARSE_AUTOTUNE_INVALID_ARGUMENT = 1, /* the message names argument, rule and value */
  SPARSE_AUTOTUNE_INVALID_PATTERN = 2,  /* the indices break a rule of BSR */
  SPARSE_AUTOTUNE_UNSUPPORTED = 3,      /* no variant may run this, or not the one asked for */
  SPARSE_AUTOTUNE_OUT_OF_MEMORY = 4,
  SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL = 5,
  SPARSE_AUTOTUNE_NO_DEVICE = 6, /* the device is not there, or not usable by this build */
  SPARSE_AUTOTUNE_IO = 7,        /* a file could not be read or written */
  SPARSE_AUTOTUNE_FAILED = 8     /* a launch or the CUDA runtime failed */
};

typedef int32_t sparse_autotune_device_type;
enum { SPARSE_AUTOTUNE_CPU = 0, SPARSE_AUTOTUNE_CUDA = 1 };

typedef int32_t sparse_autotune_dtype;
enum {
  SPARSE_AUTOTUNE_FLOAT16 = 0,
  SPARSE_AUTOTUNE_BFLOAT16 = 1,
  SPARSE_AUTOTUNE_FLOAT32 = 2,
  SPARSE_AUTOTUNE_FLOAT64 = 3
};

typedef int32_t sparse_autotune_index_type;
enum { SPARSE_AUTOTUNE_INT32 = 0, SPARSE_AUTOTUNE_INT64 = 1 };

typedef int32_t sparse_autotune_activation;
enum {
  SPARSE_AUTOTUNE_NONE = 0,
  SPARSE_AUTOTUNE_RELU = 1,
  SPARSE_AUTOTUNE_GELU = 2,      /* by the error function */
  SPARSE_AUTOTUNE_GELU_TANH = 3, /* by its approximation with tanh */
  SPARSE_AUTOTUNE_SILU = 4
};

typedef int32_t sparse_autotune_mode;
enum {
  SPARSE_AUTOTUNE_ON = 0,       /* a miss races and remembers */
  SPARSE_AUTOTUNE_OFF = 1,      /* the heuristic alone decides */
  SPARSE_AUTOTUNE_READONLY = 2, /* the cache decides, else the heuristic; never races or writes */
  SPARSE_AUTOTUNE_RECORD = 3    /* like READONLY; with verbosity 1 says what it missed */
};

typedef int32_t sparse_autotune_outcome;
enum {
  SPARSE_AUTOTUNE_RIGHT = 0, /* right, and timed to the end */
  SPARSE_AUTOTUNE_NOT_LEGAL = 1,
  SPARSE_AUTOTUNE_SKIPPED = 2,    /* its estimate does not fit the budget */
  SPARSE_AUTOTUNE_ELIMINATED = 3, /* right, and timed until it was far behind */
  SPARSE_AUTOTUNE_NO_MEMORY = 4,
  SPARSE_AUTOTUNE_LAUNCH_FAILED = 5,
  SPARSE_AUTOTUNE_WRONG = 6
};

/* Of the library that is loaded; compare it with SPARSE_AUTOTUNE_ABI_VERSION. */
SPARSE_AUTOTUNE_EXPORT uint32_t sparse_autotune_abi_version(void);
/* "0.1.0" */
SPARSE_AUTOTUNE_EXPORT const char* sparse_autotune_version(void);
/* Of this thread's last call that failed; valid until its next one that fails. Never null. */
SPARSE_AUTOTUNE_EXPORT const char* sparse_autotune_error_message(void);
/* "invalid argument"; never null. */
SPARSE_AUTOTUNE_EXPORT const char* sparse_autotune_status_name(sparse_autotune_status status);

/* ---- settings of the process ---- */

typedef struct sparse_autotune_settings {
  size_t struct_size;
  sparse_autotune_mode mode;
  int32_t verbosity;       /* 0: prints nothing; 1: a line to stderr a race, and warnings */
  double budget_s;         /* of one race; 0: 1.0 */
  int64_t plan_bytes;      /* bound on what plans keep; 0: 2^30 */
  int64_t frozen_bytes;    /* bound on copies of frozen values; 0: 2^33 */
  int64_t tuning_bytes;    /* bound on all that one race allocates; 0: 2^32 */
  int32_t exact_nonfinite; /* 1: no variant that multiplies absent blocks (0 * infinity is NaN) */
  int32_t warm;            /* 1: races on a GPU leave operands in its cache; 0: they rotate */
  const char* variant;     /* forces a variant or a family everywhere; null: the tuner chooses */
  /* Where records are kept; null: $SPARSE_AUTOTUNE_CACHE_DIR, else $XDG_CACHE_HOME/sparse_autotune,
   * else ~/.cache/sparse_autotune. "": in memory only. */
  const char* cache_directory;
  /* torch.__version__ of the Python that shares the cache: records depend on it there. Null: the
   * one that this library was built beside, if any. */
  const char* torch_version;
} sparse_autotune_settings;

/* Takes effect at the next product. What is null or 0 becomes the default again. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status
sparse_autotune_set_settings(const sparse_autotune_settings* settings);

/* ---- devices and contexts ---- */

typedef struct sparse_autotune_context sparse_autotune_context;

typedef struct sparse_autotune_context_options {
  size_t struct_size;
  sparse_autotune_device_type device_type;
  int32_t ordinal; /* of the CUDA device */
  int32_t threads; /* of the CPU, the calling one included; 0: as many as the process may use */
} sparse_autotune_context_options;

/* `options` null: the CPU with all its threads. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_context_create(
    const sparse_autotune_context_options* options, sparse_autotune_context** context);
/* Null is allowed. */
SPARSE_AUTOTUNE_EXPORT void sparse_autotune_context_destroy(sparse_autotune_context* context);

typedef struct sparse_autotune_device_info {
  size_t struct_size;
  sparse_autotune_device_type device_type;
  int32_t ordinal;
  int32_t threads;            /* of a CPU */
  int32_t compute_capability; /* 90 for sm_90 */
  int32_t multiprocessors;
  int32_t reserved;
  int64_t memory_bytes;
  const char* name; /* valid while the process lives */
  const char*
      device_class; /* what records of this device are filed under; while the context lives */
} sparse_autotune_device_info;

SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_context_device(
    const sparse_autotune_context* context, sparse_autotune_device_info* info);

/* ---- patterns ---- */

typedef struct sparse_autotune_pattern sparse_autotune_pattern;

/* Where blocks are stored: BSR's indices, of a rows x cols matrix in block_rows x block_cols
 * blocks. Columns ascend strictly within a block row. */
typedef struct sparse_autotune_pattern_description {
  size_t struct_size;
  int64_t rows, cols;             /* of the matrix, elements */
  int64_t block_rows, block_cols; /* of a block, elements */
  int64_t nnzb;                   /* stored blocks */
  const void* crow_indices;       /* rows / block_rows + 1 entries */
  const void* col_indices;        /* nnzb entries */
  sparse_autotune_index_type index_type;
  int32_t reserved;
  void* stream; /* CUDA: what reads the indices, and is waited for */
} sparse_autotune_pattern_description;

/* Copies and checks the indices, which may be host memory in a CUDA context, too: the caller's may
 * be freed or written afterwards. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_pattern_create(
    sparse_autotune_context* context, const sparse_autotune_pattern_description* description,
    sparse_autotune_pattern** pattern);
/* Null is allowed. Products that are enqueued may still run: its memory is freed behind them. */
SPARSE_AUTOTUNE_EXPORT void sparse_autotune_pattern_destroy(sparse_autotune_pattern* pattern);
/* Drops what was kept for values at that address that were `frozen`; null: for all of them. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status
sparse_autotune_pattern_thaw(sparse_autotune_pattern* pattern, const void* values);

/* ---- products ---- */

/* A dense matrix, or `batch` of them, `batch_stride` elements apart. Its rows or its columns are
 * contiguous: one of the strides is 1. Where both strides are 0, rows follow one another. */
typedef struct sparse_autotune_dense {
  void* data;
  int64_t rows, cols;
  int64_t row_stride, col_stride; /* elements from one row, one column, to the next */
  int64_t batch;                  /* 0 and 1: one matrix */
  int64_t batch_stride;           /* 0: one matrix for all, of an input only */
} sparse_autotune_dense;

/* result = activation(op(A) @ dense + bias), or with sparse_right
 * result = activation(dense @ op(A) + bias).
 * A linear layer y = x W^T is sparse_right and transpose. The bias has an entry for each row of the
 * result, with sparse_right for each column. */
typedef struct sparse_autotune_product {
  size_t struct_size;
  const void* values;          /* (nnzb, block_rows, block_cols), contiguous */
  sparse_autotune_dtype dtype; /* of values, dense, bias and result */
  sparse_autotune_activation activation;
  sparse_autotune_dense dense;  /* read */
  sparse_autotune_dense result; /* written; overlaps nothing that is read, nor itself */
  const void* bias;             /* null: none */
  int32_t sparse_right;
  int32_t transpose;     /* op(A) is A^T */
  int32_t frozen;        /* 1: values will not change before sparse_autotune_pattern_thaw() */
  int32_t allow_tf32;    /* 1: fp32 products on a GPU may round their inputs to TF32 */
  int32_t deterministic; /* 1: only variants with repeatable results */
  int32_t reserved;
  const char* variant; /* "family/configuration" or "family"; null: the tuner chooses */
  void* stream;        /* CUDA: where the work is enqueued */
  /* Scratch, aligned to 256 bytes; null: the context's own. */
  void* workspace;
  int64_t workspace_bytes;
} sparse_autotune_product;

SPARSE_AUTOTUNE_EXPORT sparse_autotune_status
sparse_autotune_matmul(sparse_autotune_pattern* pattern, const sparse_autotune_product* product);
/* How much `workspace` such a product needs. Chooses its variant, and so may race. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_matmul_workspace(
    sparse_autotune_pattern* pattern, const sparse_autotune_product* product, int64_t* bytes);

/* values = x @ y at the stored blocks, summed over the batch. */
typedef struct sparse_autotune_sampled_product {
  size_t struct_size;
  void* values; /* written: (nnzb, block_rows, block_cols), contiguous */
  sparse_autotune_dtype dtype;
  int32_t allow_tf32;
  int32_t deterministic;
  int32_t reserved;
  sparse_autotune_dense x; /* rows of the pattern x inner; read */
  sparse_autotune_dense y; /* inner x columns of the pattern; read */
  const char* variant;
  void* stream;
  void* workspace;
  int64_t workspace_bytes;
} sparse_autotune_sampled_product;

SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_sampled_matmul(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product);
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_sampled_matmul_workspace(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product,
    int64_t* bytes);

/* ---- races ---- */

typedef struct sparse_autotune_race_options {
  size_t struct_size;
  const char* variants; /* names or families, comma-separated; null: all that are legal */
  int64_t rounds;       /* 0: as many as the budget holds */
  double budget_s;      /* 0: the setting */
  int32_t keep_all;     /* 1: times everybody to the end, also who is far behind */
  int32_t save;         /* 1: replaces what is remembered of this kind of product */
  int32_t dry_run;      /* 1: launches nothing, only says who is legal */
  int32_t reserved;
} sparse_autotune_race_options;

/* What a race found out. */
typedef struct sparse_autotune_record sparse_autotune_record;

/* Races now, whatever is remembered, on operands of the tuner's own: no operand of the product is
 * read or written, but its pattern, layout and alignment count. `options` null: the defaults. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_race_matmul(
    sparse_autotune_pattern* pattern, const sparse_autotune_product* product,
    const sparse_autotune_race_options* options, sparse_autotune_record** record);
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_race_sampled_matmul(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product,
    const sparse_autotune_race_options* options, sparse_autotune_record** record);
/* The race that decides such a product, or null in *record where none is remembered. Races no one.
 */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_find_record(
    sparse_autotune_pattern* pattern, const sparse_autotune_product* product,
    sparse_autotune_record** record);
SPARSE_AUTOTUNE_EXPORT void sparse_autotune_record_destroy(sparse_autotune_record* record);

/* Texts of a record and of its entrants live as long as the record. */
typedef struct sparse_autotune_record_info {
  size_t struct_size;
  const char* signature;
  const char* device;
  const char* problem; /* "4096x4096x4096 bs64 density 0.125 bf16" (m x k x n) */
  const char* winner;  /* "" where there is none */
  const char* failure; /* why there was no race to its end; "" otherwise */
  const char* when;    /* UTC, 2026-01-31T12:34:56Z */
  double seconds;      /* that the race took */
  double nnz_flops;    /* on stored blocks */
  double dense_flops;  /* of the dense product of equal shape */
  double limit_us;     /* what the device's data sheet allows; 0: unknown */
  int64_t entrants;
} sparse_autotune_record_info;

typedef struct sparse_autotune_entrant {
  size_t struct_size;
  const char* name;   /* "family/configuration" */
  const char* reason; /* why it did not race, or left early */
  sparse_autotune_outcome outcome;
  int32_t reserved;
  double expected_us; /* by its cost model */
  double median_us;   /* of one launch; 0: not timed */
  double spread_us;   /* interquartile range */
  double error;       /* largest |result - reference| as a share of what is allowed */
  int64_t samples;
  int64_t memory_bytes; /* scratch of one launch, and the converted copy */
} sparse_autotune_entrant;

SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_record_describe(
    const sparse_autotune_record* record, sparse_autotune_record_info* info);
/* Fastest first, then those without a time. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_record_entrant(
    const sparse_autotune_record* record, int64_t index, sparse_autotune_entrant* entrant);

/* How many races this process has run for products, and by races with `save`. */
SPARSE_AUTOTUNE_EXPORT int64_t sparse_autotune_tuning_count(void);

/* ---- bundles: records in one file, as Python's cache.export() writes and cache.load() reads ----
 */

/* Those of this environment. `entries`, where it is not null, becomes how many there are. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_bundle_export(const char* path,
                                                                            int64_t* entries);
/* They are treated as measured in this environment. A file that is no bundle adds nothing. */
SPARSE_AUTOTUNE_EXPORT sparse_autotune_status sparse_autotune_bundle_load(const char* path,
                                                                          int64_t* entries);

#ifdef __cplusplus
}
#endif

#endif /* SPARSE_AUTOTUNE_H */
