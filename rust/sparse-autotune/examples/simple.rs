//! One product: makes a block-sparse matrix, multiplies, and says who computed it.
use sparse_autotune::{BsrMatrix, Context, Dense};

fn main() -> sparse_autotune::Result<()> {
    let context = Context::cpu()?;
    println!("on {}", context.device()?.name);
    // 1024 x 1024 in blocks of 32, the blocks of two diagonals.
    let blocks = 32;
    let crow: Vec<i32> = (0..=blocks).map(|row| 2 * row).collect();
    let col: Vec<i32> = (0..blocks)
        .flat_map(|row| {
            if row + 1 < blocks {
                [row, row + 1]
            } else {
                [0, row]
            }
        })
        .collect();
    let values: Vec<f32> = (0..col.len() * 32 * 32)
        .map(|i| (i % 7) as f32 - 3.0)
        .collect();
    let a = BsrMatrix::new(&context, (1024, 1024), (32, 32), &crow, &col, values)?;
    let b = vec![1.0f32; 1024 * 256];
    let c = a.matmul(Dense::row_major(&b, 1024, 256)?)?;
    println!(
        "{a:?}: c[0] = {}, {} races",
        c[0],
        sparse_autotune::tuning_count()?
    );
    Ok(())
}
