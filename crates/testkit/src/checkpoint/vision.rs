//! Tiny models with towers: the weights whose results the goldens of `narthex-checkpoint` have, with a vocabulary
//! and a chat template.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

/// Template of a model whose control token for an image is `IMAGE`, and that for a sound `AUDIO`.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}{% else %}\
    {% for part in m.content %}{% if part.type == 'image' %}IMAGE{% elif part.type == 'audio' %}AUDIO{% else %}\
    {{ part.text }}{% endif %}\
    {% endfor %}{% endif %};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// Positions of a picture in a prompt of the tiny Gemma 3: 16 rows, a control token on either side, and two line breaks
/// around these.
pub const PICTURE_POSITIONS: usize = 16 + 2 + 4;

/// Positions of a picture in a prompt of the tiny Gemma 3n: four rows, control tokens and line breaks as in Gemma 3.
pub const GEMMA3N_PICTURE_POSITIONS: usize = 4 + 2 + 4;

/// Positions of a sound in a prompt of the tiny Gemma 3n: ten rows, control tokens and line breaks as those of a picture.
pub const GEMMA3N_SOUND_POSITIONS: usize = 10 + 2 + 4;

/// Writes a tiny Gemma 3 with a vision tower into `folder`.
pub fn tiny_gemma_with_vision(folder: &Path) -> io::Result<()> {
    let control = ["<start_of_image>", "<image_soft_token>", "<end_of_image>"];
    write(folder, "vision", "<start_of_image>", &control.map(str::to_owned))
}

/// Writes a tiny Gemma 3n with its towers into `folder`. It reads sounds of at most 1.63 seconds.
pub fn tiny_gemma3n(folder: &Path) -> io::Result<()> {
    let control = ["<start_of_image>", "<end_of_image>", "<image_soft_token>", "<83>", "<84>"];
    let sound = ["<end_of_audio>", "<audio_soft_token>", "<87>"];
    let control: Vec<String> = control.into_iter().chain(sound).map(str::to_owned).collect();
    write(folder, "gemma3n", "<image_soft_token>", &control)
}

/// Writes a tiny Idefics3 into `folder`. It reads tiles of 32 × 32 pixels, and resizes pictures to a longest edge of 64.
pub fn tiny_idefics3(folder: &Path) -> io::Result<()> {
    let control = ["<image>", "<fake_token_around_image>", "<global-img>"].map(str::to_owned);
    let places = [1, 2].into_iter().flat_map(|row| [1, 2].map(|column| format!("<row_{row}_col_{column}>")));
    write(folder, "idefics3", "<image>", &control.into_iter().chain(places).collect::<Vec<_>>())
}

/// Writes the model of these goldens. Its control tokens follow the 80 tokens of the shared vocabulary; its template writes
/// `image` for an image.
fn write(folder: &Path, model: &str, image: &str, control: &[String]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens");
    for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        fs::copy(goldens.join(model).join(file), folder.join(file))?;
    }

    let mut tokenizer: Value = serde_json::from_slice(&fs::read(goldens.join("families/tokenizer.json"))?)?;
    let added = control.iter().zip(80..).map(|(content, id)| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false
        })
    });
    if let Some(tokens) = tokenizer["added_tokens"].as_array_mut() {
        tokens.extend(added);
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string())?;
    let template = TEMPLATE.replace("IMAGE", image).replace("AUDIO", "<audio_soft_token>");
    let settings = json!({"chat_template": template, "bos_token": "<2>", "eos_token": "<1>"});
    fs::write(folder.join("tokenizer_config.json"), settings.to_string())
}
