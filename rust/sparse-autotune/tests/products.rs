//! Products against sums in f64, and what is refused. Every matrix is small.
use sparse_autotune::*;

/// xorshift, in [-1, 1).
struct Random(u64);
impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() as f32).collect()
    }
}

const ROWS: usize = 24;
const COLS: usize = 36;
const BLOCK: (usize, usize) = (8, 12);
const CROW: [i64; 4] = [0, 2, 2, 5];
const COL: [i64; 5] = [0, 2, 0, 1, 2];

fn context() -> Context {
    Settings {
        mode: Mode::Off,
        cache_directory: Some(String::new()),
        ..Settings::default()
    }
    .apply()
    .unwrap();
    Context::cpu_with_threads(2).unwrap()
}

fn matrix(values: &[f32]) -> BsrMatrix<'_, f32> {
    BsrMatrix::new(&context(), (ROWS, COLS), BLOCK, &CROW, &COL, values).unwrap()
}

fn dense_of(values: &[f32]) -> Vec<f64> {
    let mut dense = vec![0.0; ROWS * COLS];
    for row in 0..3 {
        for at in CROW[row] as usize..CROW[row + 1] as usize {
            for i in 0..BLOCK.0 {
                for j in 0..BLOCK.1 {
                    let to = (row * BLOCK.0 + i) * COLS + COL[at] as usize * BLOCK.1 + j;
                    dense[to] = values[(at * BLOCK.0 + i) * BLOCK.1 + j].into();
                }
            }
        }
    }
    dense
}

/// Element by element; a NaN fails.
fn assert_close(found: f32, terms: impl Iterator<Item = f64> + Clone) {
    let expected: f64 = terms.clone().sum();
    let magnitude: f64 = terms.map(f64::abs).sum();
    let allowed = 1e-7 * expected.abs() + 3e-6 * magnitude + 1e-30;
    assert!(
        (f64::from(found) - expected).abs() <= allowed,
        "{found} is not {expected}"
    );
}

#[test]
fn matmul_and_linear() {
    let mut random = Random(1);
    let values = random.take(5 * 96);
    let (a, full) = (matrix(&values), dense_of(&values));
    let b = random.take(COLS * 7);
    let c = a.matmul(Dense::row_major(&b, COLS, 7).unwrap()).unwrap();
    for i in 0..ROWS {
        for j in 0..7 {
            assert_close(
                c[i * 7 + j],
                (0..COLS).map(|k| full[i * COLS + k] * f64::from(b[k * 7 + j])),
            );
        }
    }
    let (x, bias) = (random.take(5 * COLS), random.take(ROWS));
    let y = a
        .linear(
            Dense::row_major(&x, 5, COLS).unwrap(),
            Some(&bias),
            Activation::None,
        )
        .unwrap();
    for t in 0..5 {
        for i in 0..ROWS {
            let terms = (0..COLS).map(|k| full[i * COLS + k] * f64::from(x[t * COLS + k]));
            assert_close(y[t * ROWS + i], terms.chain([f64::from(bias[i])]));
        }
    }
}

#[test]
fn strides_and_batches() {
    let mut random = Random(2);
    let values = random.take(5 * 96);
    let (a, full) = (matrix(&values), dense_of(&values));
    let layout = Layout {
        batch: 3,
        batch_stride: 7 * 40,
        ..Layout::col_major(COLS, 7)
    };
    let layout = Layout {
        col_stride: 40,
        ..layout
    };
    let b = random.take(layout.span().unwrap());
    let written = Layout {
        row_stride: 9,
        batch: 3,
        batch_stride: ROWS * 9,
        ..Layout::row_major(ROWS, 7)
    };
    let mut c = vec![f32::NAN; 3 * ROWS * 9];
    let target = DenseMut::new(&mut c, written).unwrap();
    a.matmul_into(
        Dense::new(&b, layout).unwrap(),
        None,
        target,
        &Options::default(),
    )
    .unwrap();
    for t in 0..3 {
        for i in 0..ROWS {
            for j in 0..9 {
                let found = c[(t * ROWS + i) * 9 + j];
                if j >= 7 {
                    assert!(found.is_nan());
                    continue;
                }
                let of = |k: usize| f64::from(b[t * 280 + j * 40 + k]);
                assert_close(found, (0..COLS).map(|k| full[i * COLS + k] * of(k)));
            }
        }
    }
}

#[test]
fn sampled_product() {
    let mut random = Random(3);
    let values = random.take(5 * 96);
    let a = matrix(&values);
    let (x, y) = (random.take(ROWS * 10), random.take(10 * COLS));
    let mut sampled = vec![f32::NAN; 5 * 96];
    let (left, right) = (
        Dense::row_major(&x, ROWS, 10).unwrap(),
        Dense::row_major(&y, 10, COLS).unwrap(),
    );
    a.pattern()
        .sampled_matmul(left, right, &mut sampled)
        .unwrap();
    let rows = [0, 0, 2, 2, 2];
    for at in 0..5 {
        for i in 0..8 {
            for j in 0..12 {
                let (row, col) = (rows[at] * 8 + i, COL[at] as usize * 12 + j);
                let terms =
                    (0..10).map(|k| f64::from(x[row * 10 + k]) * f64::from(y[k * COLS + col]));
                assert_close(sampled[(at * 8 + i) * 12 + j], terms);
            }
        }
    }
}

#[test]
fn benchmark_names_a_winner() {
    let values = Random(4).take(5 * 96);
    let a = matrix(&values);
    let b = vec![1.0f32; COLS * 16];
    let report = a
        .benchmark(
            Dense::row_major(&b, COLS, 16).unwrap(),
            Some("cpu_tiled,reference"),
        )
        .unwrap();
    let (best, tflops) = report.best().unwrap();
    assert!(best.outcome == Outcome::Right && best.error <= 1.0 && tflops > 0.0);
    assert!(report
        .entrants
        .iter()
        .any(|e| e.name.starts_with("reference/")));
    let error = a
        .benchmark(Dense::row_major(&b, COLS, 16).unwrap(), Some("nobody"))
        .unwrap_err();
    assert!(
        matches!(error, Error::Unsupported(ref text) if text.contains("'nobody'")),
        "{error}"
    );
}

#[test]
fn several_threads_share_a_matrix() {
    let values = Random(5).take(5 * 96);
    let (a, full) = (matrix(&values), dense_of(&values));
    std::thread::scope(|scope| {
        for seed in 1..5u64 {
            let (a, full) = (&a, &full);
            scope.spawn(move || {
                let b = Random(seed * 99).take(COLS * 33);
                let c = a.matmul(Dense::row_major(&b, COLS, 33).unwrap()).unwrap();
                for i in 0..ROWS {
                    for j in 0..33 {
                        let of = |k: usize| f64::from(b[k * 33 + j]);
                        assert_close(c[i * 33 + j], (0..COLS).map(|k| full[i * COLS + k] * of(k)));
                    }
                }
            });
        }
    });
}

#[test]
fn bad_input_is_an_error() {
    let context = context();
    let values = vec![0.0f32; 5 * 96];
    let make = |shape, block, crow: &[i64], col: &[i64], values: &[f32]| {
        BsrMatrix::new(&context, shape, block, crow, col, values.to_vec())
            .map(|_| ())
            .unwrap_err()
    };
    for error in [
        make((25, COLS), BLOCK, &CROW, &COL, &values),
        make((ROWS, COLS), (0, 12), &CROW, &COL, &values),
        make((ROWS, COLS), BLOCK, &CROW[..3], &COL, &values),
        make((ROWS, COLS), BLOCK, &CROW, &COL, &values[1..]),
        make((usize::MAX - 7, COLS), (8, 12), &CROW, &COL, &values),
    ] {
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    }
    for (crow, col) in [
        ([0, 2, 1, 5], COL),
        ([1, 2, 2, 5], COL),
        (CROW, [0, 2, 0, 1, 3]),
    ] {
        let error = make((ROWS, COLS), BLOCK, &crow, &col, &values);
        assert!(matches!(error, Error::InvalidPattern(_)), "{error:?}");
    }
    let a = matrix(&values);
    let b = vec![0.0f32; COLS * 4];
    assert!(Dense::row_major(&b, COLS, 5).is_err());
    assert!(Dense::new(
        &b,
        Layout {
            row_stride: usize::MAX,
            ..Layout::row_major(2, 2)
        }
    )
    .is_err());
    assert!(a
        .matmul(Dense::row_major(&b, COLS - 1, 4).unwrap())
        .is_err());
    // One element, which strides of 0 would make a matrix of: to the C interface they say "packed".
    let point = Layout {
        row_stride: 0,
        col_stride: 0,
        ..Layout::row_major(COLS, 4)
    };
    let error = a.matmul(Dense::new(&b[..1], point).unwrap()).unwrap_err();
    assert!(error.to_string().contains("must be positive"), "{error}");
    // A batch of one matrix, over and over, whose result nobody has memory for.
    for batch in [1 << 40, usize::MAX] {
        let many = Layout {
            batch,
            ..Layout::row_major(COLS, 4)
        };
        let many = Dense::new(&b, many).unwrap();
        assert!(matches!(a.matmul(many), Err(Error::OutOfMemory(_))));
        assert!(matches!(
            a.benchmark(many, None),
            Err(Error::OutOfMemory(_))
        ));
    }
    assert!(Pattern::new::<i64>(&context, (usize::MAX, 1), (1, 1), &[], &[]).is_err());
    let x = Dense::row_major(&b, 4, COLS).unwrap();
    let error = a
        .linear(x, Some(&values[..ROWS - 1]), Activation::Relu)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "bias must have the 24 entries of the result, got 23"
    );
    let unknown = Options {
        variant: Some("no such\0".into()),
        ..Options::default()
    };
    let mut c = vec![0.0f32; ROWS * 4];
    let target = DenseMut::row_major(&mut c, ROWS, 4).unwrap();
    assert!(a
        .matmul_into(
            Dense::row_major(&b, COLS, 4).unwrap(),
            None,
            target,
            &unknown
        )
        .is_err());
}
