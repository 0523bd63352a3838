//! Seeds for payloads of files of the prefix cache: tokens, layers, and for each layer its shape and its elements.

use super::Input;

/// Shape of a layer: heads, elements of a head, and the types of keys and values.
type Shape = (u32, u32, [u8; 2]);

/// Returns a payload whose layers have `elements` zero bytes each.
fn payload(tokens: u32, layers: u32, shapes: &[(Shape, usize)]) -> Vec<u8> {
    let mut bytes = [tokens.to_le_bytes(), layers.to_le_bytes()].concat();
    for ((heads, head_size, types), elements) in shapes {
        bytes.extend([heads.to_le_bytes(), head_size.to_le_bytes()].concat());
        bytes.extend(types);
        bytes.resize(bytes.len() + elements, 0);
    }
    bytes
}

pub(super) fn seeds() -> Vec<Input> {
    let single = (2, 4, [0, 0]);
    let half = (1, 2, [1, 1]);
    let most = u32::MAX;
    vec![
        Input::valid("none", payload(0, 0, &[])),
        Input::valid("single", payload(3, 1, &[(single, 3 * 2 * 4 * 8)])),
        Input::valid("half", payload(3, 1, &[(half, 3 * 2 * 4)])),
        Input::valid("both", payload(64, 2, &[(single, 64 * 2 * 4 * 8), (half, 64 * 2 * 4)])),
        Input::bomb("tokens", payload(most, 1, &[(single, 64)])),
        Input::bomb("layers", payload(1, most, &[(single, 64)])),
        Input::bomb("empty-layers", payload(most, most, &[((0, most, [1, 0]), 0); 500])),
        Input::bomb("overflow", payload(most, 1, &[((most, most, [0, 0]), 8)])),
    ]
}
