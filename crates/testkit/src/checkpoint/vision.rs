//! A tiny Gemma 3 with a vision tower: the weights whose results the goldens of `narthex-checkpoint` have, with a
//! vocabulary and a chat template.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

/// Control tokens of a picture in the vocabulary.
const CONTROL: [(u32, &str); 3] =
    [(80, "<start_of_image>"), (81, "<image_soft_token>"), (82, "<end_of_image>")];

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}{% else %}\
    {% for part in m.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// Positions of a picture in a prompt: 16 rows, a control token on either side, and two line breaks around these.
pub const PICTURE_POSITIONS: usize = 16 + 2 + 4;

/// Writes the model into `folder`.
pub fn tiny_gemma_with_vision(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens");
    for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        fs::copy(goldens.join("vision").join(file), folder.join(file))?;
    }

    let mut tokenizer: Value = serde_json::from_slice(&fs::read(goldens.join("families/tokenizer.json"))?)?;
    let control = CONTROL.map(|(id, content)| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false
        })
    });
    if let Some(added) = tokenizer["added_tokens"].as_array_mut() {
        added.extend(control);
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string())?;
    let settings = json!({"chat_template": TEMPLATE, "bos_token": "<2>", "eos_token": "<1>"});
    fs::write(folder.join("tokenizer_config.json"), settings.to_string())
}
