//! The witness policy. A refusal is an `Err` with its reason.

/// A tensor in the storage that came with it: its strides and offset in elements, as the harness
/// sent them, of little-endian bytes.
pub struct Tensor {
    pub storage: Vec<u8>,
    pub dtype: String,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: i64,
}

impl Tensor {
    fn start(&self, index: &[i64]) -> usize {
        let steps = index
            .iter()
            .zip(&self.strides)
            .map(|(i, stride)| i * stride);
        let element = (self.offset + steps.sum::<i64>()) as usize;
        element * if self.dtype == "int64" { 8 } else { 4 }
    }

    fn get(&self, index: &[i64]) -> i64 {
        let bytes = &self.storage[self.start(index)..];
        match self.dtype.as_str() {
            "int64" => i64::from_le_bytes(bytes[..8].try_into().unwrap()),
            _ => i32::from_le_bytes(bytes[..4].try_into().unwrap()).into(),
        }
    }

    fn set(&mut self, index: &[i64], value: i32) {
        let start = self.start(index);
        self.storage[start..start + 4].copy_from_slice(&value.to_le_bytes());
    }
}

pub type Outcome<T> = Result<T, String>;

fn require(holds: bool, otherwise: &str) -> Outcome<()> {
    holds.then_some(()).ok_or_else(|| otherwise.to_string())
}

fn check(learned: &Tensor, lengths: &Tensor) -> Outcome<()> {
    let rows = learned.dtype == "int32" && learned.shape.len() == 2;
    require(rows, "learned rows must be int32, 2-D")?;
    let one_a_row = lengths.shape.len() == 1 && lengths.shape[0] == learned.shape[0];
    require(one_a_row, "context_lens must be 1-D, one a row")?;
    let integers = ["int32", "int64"].contains(&lengths.dtype.as_str());
    require(integers, "context_lens must be int32 or int64")
}

/// The left edge of each segment of a row that no learned entry marks; -1 elsewhere.
fn witnesses(learned: &Tensor, row: i64, length: i64, segments: i64) -> Vec<i32> {
    let divisor = length.max(1);
    let effective = segments.min(divisor) as i128;
    let mut edges = vec![-1; segments as usize];
    for s in 0..segments.min(length).max(0) {
        // The first token whose segment is s.
        edges[s as usize] = ((s as i128 * length as i128 + effective - 1) / effective) as i32;
    }
    for slot in 0..learned.shape[1] {
        let token = learned.get(&[row, slot]);
        if token >= 0 {
            // Past the context, it marks the last segment asked for.
            let segment = token as i128 * effective / divisor as i128;
            edges[segment.min(segments as i128 - 1) as usize] = -1;
        }
    }
    edges
}

/// `poison` is what the result holds wherever this does not write.
pub fn indices(
    lengths: &Tensor,
    learned: &Tensor,
    segments: i64,
    poison: i32,
) -> Outcome<Vec<i32>> {
    check(learned, lengths)?;
    require(segments >= 1, "num_segments must be positive")?;
    let mut all = vec![poison; (learned.shape[0] * segments) as usize];
    for (row, slots) in all.chunks_mut(segments as usize).enumerate() {
        let row = row as i64;
        slots.copy_from_slice(&witnesses(learned, row, lengths.get(&[row]), segments));
    }
    Ok(all)
}

pub fn apply(
    learned: &Tensor,
    lengths: &Tensor,
    keep: i64,
    segments: i64,
    most: i64,
    poison: i32,
) -> Outcome<Vec<i32>> {
    check(learned, lengths)?;
    let (rows, topk) = (learned.shape[0], learned.shape[1]);
    require(
        (0..=topk).contains(&keep),
        "learned_keep must be in [0, topk]",
    )?;
    require(
        (1..=64).contains(&segments),
        "num_segments must be in [1, 64]",
    )?;
    require(most >= 0, "max_replacements must not be negative")?;
    let mut merged = vec![poison; (rows * topk) as usize];
    for row in 0..rows {
        let slots = &mut merged[(row * topk) as usize..((row + 1) * topk) as usize];
        for (slot, value) in slots.iter_mut().enumerate() {
            *value = learned.get(&[row, slot as i64]) as i32;
        }
        let edges = witnesses(learned, row, lengths.get(&[row]), segments);
        let new = edges
            .into_iter()
            .filter(|edge| *edge >= 0)
            .take(most as usize);
        for (value, edge) in slots[keep as usize..].iter_mut().zip(new) {
            *value = edge;
        }
    }
    Ok(merged)
}

pub fn scatter(rows: &mut Tensor, lengths: &Tensor, segments: i64) -> Outcome<()> {
    check(rows, lengths)?;
    require(
        (0..=64).contains(&segments),
        "num_segments must be in [0, 64]",
    )?;
    if segments == 0 {
        return Ok(());
    }
    let topk = rows.shape[1];
    let merged = apply(
        rows,
        lengths,
        (topk - segments).max(0),
        segments,
        segments,
        0,
    )?;
    for (i, value) in (0i64..).zip(merged) {
        rows.set(&[i / topk, i % topk], value);
    }
    Ok(())
}
