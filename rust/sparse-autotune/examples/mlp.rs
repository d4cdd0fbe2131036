//! The forward of an MLP block with two block-sparse layers, `y = W2 gelu(W1 x + b1) + b2`, checked
//! against f64 and timed beside the same block with dense weights.
use sparse_autotune::{Activation, BsrMatrix, Context, Dense, Result};
use std::time::Instant;

const BLOCK: usize = 32;

/// A linear layer: its weight's blocks, and a bias.
struct Linear {
    weight: BsrMatrix<'static, f32>,
    crow: Vec<i64>,
    col: Vec<i64>,
    bias: Vec<f32>,
}

impl Linear {
    /// Stores one block in `every`.
    fn new(context: &Context, inputs: usize, outputs: usize, every: usize) -> Result<Self> {
        let (mut crow, mut col) = (vec![0i64], Vec::new());
        for row in 0..outputs / BLOCK {
            col.extend(
                (0..inputs / BLOCK)
                    .filter(|c| (row + c) % every == 0)
                    .map(|c| c as i64),
            );
            crow.push(col.len() as i64);
        }
        let scale = (every as f32 / inputs as f32).sqrt();
        let noise = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0;
        let values: Vec<f32> = (0..col.len() * BLOCK * BLOCK)
            .map(|i| scale * noise(i))
            .collect();
        let bias = (0..outputs).map(|i| 0.1 * noise(i)).collect();
        let weight = BsrMatrix::new(
            context,
            (outputs, inputs),
            (BLOCK, BLOCK),
            &crow,
            &col,
            values,
        )?;
        Ok(Linear {
            weight,
            crow,
            col,
            bias,
        })
    }

    fn forward(&self, x: &[f32], tokens: usize, activation: Activation) -> Result<Vec<f32>> {
        let x = Dense::row_major(x, tokens, x.len() / tokens)?;
        self.weight.linear(x, Some(&self.bias), activation)
    }

    /// One token in f64, before the activation.
    fn reference(&self, x: &[f64]) -> Vec<f64> {
        let mut y: Vec<f64> = self.bias.iter().map(|&b| b.into()).collect();
        for row in 0..self.crow.len() - 1 {
            for at in self.crow[row] as usize..self.crow[row + 1] as usize {
                for i in 0..BLOCK {
                    for j in 0..BLOCK {
                        let w = self.weight.values()[(at * BLOCK + i) * BLOCK + j];
                        y[row * BLOCK + i] += f64::from(w) * x[self.col[at] as usize * BLOCK + j];
                    }
                }
            }
        }
        y
    }
}

fn forward(layers: &[Linear; 2], x: &[f32], tokens: usize) -> Result<Vec<f32>> {
    let hidden = layers[0].forward(x, tokens, Activation::GeluTanh)?;
    layers[1].forward(&hidden, tokens, Activation::None)
}

fn reference(layers: &[Linear; 2], x: &[f32]) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let gelu = |h: f64| 0.5 * h * (1.0 + (0.7978845608028654 * (h + 0.044715 * h * h * h)).tanh());
    let hidden: Vec<f64> = layers[0].reference(&x).into_iter().map(gelu).collect();
    layers[1].reference(&hidden)
}

/// The median of some forwards in ms; the first one, which races, is not among them.
fn time(layers: &[Linear; 2], x: &[f32], tokens: usize) -> Result<f64> {
    forward(layers, x, tokens)?;
    let mut times = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        forward(layers, x, tokens)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[7])
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (tokens, width) = (64, 512);
    let context = Context::cpu()?;
    let block = |every| -> Result<[Linear; 2]> {
        Ok([
            Linear::new(&context, width, 4 * width, every)?,
            Linear::new(&context, 4 * width, width, every)?,
        ])
    };
    let (sparse, dense) = (block(8)?, block(1)?);
    let x: Vec<f32> = (0..tokens * width)
        .map(|i| ((i * 31 + 7) % 113) as f32 / 56.0 - 1.0)
        .collect();
    let y = forward(&sparse, &x, tokens)?;
    for token in 0..4 {
        let expected = reference(&sparse, &x[token * width..(token + 1) * width]);
        for (found, expected) in y[token * width..].iter().zip(&expected) {
            let off = (f64::from(*found) - expected).abs() / (1.0 + expected.abs());
            if off.is_nan() || off > 1e-4 {
                return Err(format!("{found} is not {expected}").into());
            }
        }
    }
    let (fast, slow) = (time(&sparse, &x, tokens)?, time(&dense, &x, tokens)?);
    println!("right; one block in eight stored {fast:.3} ms, all stored {slow:.3} ms");
    Ok(())
}
