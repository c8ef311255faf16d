//! The witness family in Rust, as a worker: docs/worker-protocol.md.
//!
//!     cargo build --release
//!
//! A frame is 16 bytes, "SCW1", the size of a message and that of its buffers, and then those two.

mod json;
mod witness;

use std::io::{self, Read, Write};

use json::Json;
use witness::{Outcome, Tensor};

fn receive(stdin: &mut impl Read) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut prefix = [0; 16];
    stdin.read_exact(&mut prefix)?;
    assert_eq!(&prefix[..4], b"SCW1", "no frame");
    let message = u32::from_le_bytes(prefix[4..8].try_into().unwrap());
    let buffers = u64::from_le_bytes(prefix[8..].try_into().unwrap());
    let mut read = (vec![0; message as usize], vec![0; buffers as usize]);
    stdin.read_exact(&mut read.0)?;
    stdin.read_exact(&mut read.1)?;
    Ok(read)
}

fn send(message: &str, buffers: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(b"SCW1")?;
    stdout.write_all(&(message.len() as u32).to_le_bytes())?;
    stdout.write_all(&(buffers.len() as u64).to_le_bytes())?;
    stdout.write_all(message.as_bytes())?;
    stdout.write_all(buffers)?;
    stdout.flush()
}

/// A tensor argument, and the front of `buffers`, which is its storage.
fn tensor(argument: &Json, buffers: &mut &[u8]) -> Tensor {
    assert!(
        argument.get("parts").items().is_empty(),
        "a storage in parts"
    );
    let dtype = argument.get("dtype").text();
    let size = match dtype {
        "bool" | "uint8" | "int8" => 1,
        "int16" | "float16" | "bfloat16" => 2,
        "int64" | "float64" => 8,
        _ => 4,
    };
    let (storage, rest) = buffers.split_at(argument.get("elements").integer() as usize * size);
    *buffers = rest;
    Tensor {
        storage: storage.to_vec(),
        dtype: dtype.to_string(),
        shape: argument.get("shape").integers(),
        strides: argument.get("strides").integers(),
        offset: argument.get("offset").integer(),
    }
}

/// The operations, and the parameters that are tensors: the order of their buffers.
const OPERATIONS: [(&str, [&str; 2]); 3] = [
    (
        "topology_witness_indices",
        ["context_lens", "learned_indices"],
    ),
    (
        "apply_topology_witnesses",
        ["learned_indices", "context_lens"],
    ),
    (
        "scatter_topology_witnesses_",
        ["topk_indices", "context_lens"],
    ),
];

fn answer(call: &Json, mut buffers: &[u8]) -> io::Result<()> {
    let name = call.get("operation").text();
    let (_, parameters) = OPERATIONS
        .iter()
        .find(|(each, _)| *each == name)
        .expect("an operation");
    let given = call.get("arguments");
    let integer = |name: &str| given.get(name).integer();
    let poison = if call.get("poison").text() == "high" {
        i32::MAX
    } else {
        i32::MIN
    };

    let mut first = tensor(given.get(parameters[0]), &mut buffers);
    let second = tensor(given.get(parameters[1]), &mut buffers);
    let segments = integer("num_segments");
    let outcome: Outcome<Option<(i64, Vec<i32>)>> = match name {
        "topology_witness_indices" => {
            witness::indices(&first, &second, segments, poison).map(|all| Some((segments, all)))
        }
        "apply_topology_witnesses" => {
            let (keep, most) = (integer("learned_keep"), integer("max_replacements"));
            witness::apply(&first, &second, keep, segments, most, poison)
                .map(|all| Some((first.shape[1], all)))
        }
        _ => witness::scatter(&mut first, &second, segments).map(|()| None),
    };

    let number = call.get("number").text();
    let mut body = [first.storage, second.storage].concat();
    let message = match outcome {
        Err(reason) => {
            format!(r#"{{"type": "refusal", "number": {number}, "message": "{reason}"}}"#)
        }
        Ok(None) => format!(r#"{{"type": "result", "number": {number}}}"#),
        Ok(Some((columns, all))) => {
            let rows = given.get("context_lens").get("shape").integers()[0];
            body.extend(all.iter().flat_map(|value| value.to_le_bytes()));
            let result =
                format!(r#"{{"type": "tensor", "dtype": "int32", "shape": [{rows}, {columns}]}}"#);
            format!(r#"{{"type": "result", "number": {number}, "results": [{result}]}}"#)
        }
    };
    send(&message, &body)
}

fn main() -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    // Nothing can be read any more where the harness has gone.
    while let Ok((message, buffers)) = receive(&mut stdin) {
        let message = Json::parse(&message);
        if message.get("type").text() == "call" {
            answer(&message, &buffers)?;
        } else {
            let names = OPERATIONS.map(|(name, _)| format!("{name:?}")).join(", ");
            let hello = r#"{"type": "hello", "protocol": 1, "device": "cpu", "operations": ["#;
            send(&format!("{hello}{names}]}}"), &[])?;
        }
    }
    Ok(())
}
