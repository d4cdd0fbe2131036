/* Forks again and again while other threads are inside of the library. Each child, which has none
 * of those threads, must get through products with the parent's pattern and with one of its own,
 * settings, records and bundles:
 *
 *     forks COUNT FOLDER
 */
#include <math.h>
#include <pthread.h>
#include <sparse_autotune.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 6, kSize = 32, kPatienceS = 60 };

static const char* folder;
static sparse_autotune_context* context;
static sparse_autotune_pattern* pattern;
static atomic_int is_over;

static void must(sparse_autotune_status status) {
  if (status == SPARSE_AUTOTUNE_OK) return;
  fprintf(stderr, "forks: %s\n", sparse_autotune_error_message());
  _exit(1);
}

/* A diagonal of blocks. */
static sparse_autotune_pattern* made_pattern(void) {
  static const int32_t crow[] = {0, 1, 2}, col[] = {0, 1};
  sparse_autotune_pattern_description d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
  d.rows = d.cols = kSize;
  d.block_rows = d.block_cols = kSize / 2;
  d.nnzb = 2;
  d.crow_indices = crow;
  d.col_indices = col;
  d.index_type = SPARSE_AUTOTUNE_INT32;
  sparse_autotune_pattern* made = NULL;
  must(sparse_autotune_pattern_create(context, &d, &made));
  return made;
}

/* Of ones: half of the sums are of kSize / 2 of them. */
static void multiply(sparse_autotune_pattern* with, int64_t columns, const char* variant,
                     int32_t transpose) {
  float values[2 * kSize / 2 * kSize / 2], dense[kSize * 4], result[kSize * 4];
  for (int i = 0; i < kSize * kSize / 2; ++i) values[i] = 1;
  for (int i = 0; i < kSize * 4; ++i) {
    dense[i] = 1;
    result[i] = NAN;
  }
  sparse_autotune_product p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
  p.dtype = SPARSE_AUTOTUNE_FLOAT32;
  p.values = values;
  p.dense.data = dense;
  p.result.data = result;
  p.dense.rows = p.result.rows = kSize;
  p.dense.cols = p.result.cols = columns;
  p.transpose = transpose;
  p.variant = variant;
  p.frozen = 1;
  must(sparse_autotune_matmul(with, &p));
  for (int i = 0; i < kSize * columns; ++i) {
    if (result[i] == kSize / 2) continue;
    fprintf(stderr, "forks: element %d is %f\n", i, (double)result[i]);
    _exit(1);
  }
  must(sparse_autotune_pattern_thaw(with, values));
}

static void set_settings(int other) {
  sparse_autotune_settings s = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
  s.mode = SPARSE_AUTOTUNE_OFF;
  s.cache_directory = folder;
  s.torch_version = other ? "1" : "2"; /* each time another store */
  must(sparse_autotune_set_settings(&s));
}

static void find(sparse_autotune_pattern* with) {
  float number = 0;
  sparse_autotune_product p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
  p.dtype = SPARSE_AUTOTUNE_FLOAT32;
  p.values = &number;
  p.dense.data = p.result.data = &number;
  p.dense.rows = p.result.rows = kSize;
  p.dense.cols = p.result.cols = 1;
  sparse_autotune_record* record = NULL;
  sparse_autotune_find_record(with, &p, &record);
  sparse_autotune_record_destroy(record);
}

static void export_bundle(void) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/bundle%d", folder, (int)getpid());
  must(sparse_autotune_bundle_export(path, NULL));
}

static void* work(void* given) {
  const long number = (long)given;
  for (int i = 0; !is_over; ++i) {
    if (number == 0) {
      set_settings(i % 2);
    } else if (number == 1) {
      find(pattern);
    } else {
      multiply(pattern, 1 + i % 4, i % 3 ? "cpu_rows" : NULL, i % 2);
    }
  }
  return NULL;
}

static void be_a_child(void) {
  alarm(kPatienceS);
  set_settings(0);
  for (int32_t transpose = 0; transpose < 2; ++transpose) {
    multiply(pattern, 3, "cpu_rows", transpose);
    multiply(pattern, 3, NULL, transpose);
  }
  find(pattern);
  export_bundle();
  sparse_autotune_pattern* const own = made_pattern();
  multiply(own, 3, NULL, 1);
  sparse_autotune_pattern_destroy(own);
  sparse_autotune_pattern_destroy(pattern);
  sparse_autotune_context_destroy(context);
  is_over = 1; /* no thread is there to see it */
  _exit(0);
}

int main(int count, char** words) {
  if (count != 3) return 2;
  folder = words[2];
  set_settings(0);
  must(sparse_autotune_context_create(NULL, &context));
  pattern = made_pattern();
  pthread_t threads[kThreads];
  for (long i = 0; i < kThreads; ++i) {
    if (pthread_create(&threads[i], NULL, work, (void*)i) != 0) return 2;
  }
  int failed = 0;
  for (int i = atoi(words[1]); i > 0 && !failed; --i) {
    const pid_t child = fork();
    if (child == 0) be_a_child();
    int status = 0;
    waitpid(child, &status, 0);
    failed = status != 0;
    if (failed) fprintf(stderr, "forks: wait status %d (14: the child hung)\n", status);
  }
  is_over = 1;
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  return failed;
}
