//! Races all variants on one product and prints how they fared.
use sparse_autotune::{BsrMatrix, Context, Dense};

fn main() -> sparse_autotune::Result<()> {
    let (size, block, columns) = (1024usize, 64usize, 128usize);
    let context = Context::cpu()?;
    let grid = size / block;
    // Every fourth block.
    let (mut crow, mut col) = (vec![0i64], Vec::new());
    for row in 0..grid {
        col.extend((0..grid).filter(|c| (row + c) % 4 == 0).map(|c| c as i64));
        crow.push(col.len() as i64);
    }
    let values = vec![0.5f32; col.len() * block * block];
    let a = BsrMatrix::new(&context, (size, size), (block, block), &crow, &col, values)?;
    let b = vec![1.0f32; size * columns];
    let report = a.benchmark(Dense::row_major(&b, size, columns)?, None)?;
    println!("{} on {}", report.problem, report.device);
    for entrant in &report.entrants {
        println!(
            "  {:<36} {:>10.1} us  {}",
            entrant.name, entrant.median_us, entrant.reason
        );
    }
    if let Some((best, tflops)) = report.best() {
        println!(
            "  winner: {}, {tflops:.3} TFLOP/s on stored blocks",
            best.name
        );
    }
    Ok(())
}
