//! `narthex chat` without a question: a conversation with history and commands.

use std::path::Path;

use narthex_gateway::{
    Error, Gateway,
    models::{ModelKind, ModelStatus},
    request::{Content, Media, MediaKind, Message, ReadDocument, Role},
};
use rustyline::error::ReadlineError;

use super::{
    conversation_file,
    generation::{ChatModel, options, print_speed},
    load, media, question_files, stated_scheme,
    tools::{self, ChatTools},
};
use crate::{
    args::{ChatArgs, GenerateArgs},
    bars::Bars,
    chat_editor::ChatEditor,
    exit, interrupt, output,
    running_server::ServedModel,
};

const HELP: &str = r#"/system [TEXT]    show the instructions, or start a new conversation with these
/clear            start a new conversation
/image FILE       attach an image to the next message
/audio FILE       attach a sound to the next message
/video FILE       attach the frames of a video to the next message
/regenerate       answer the last question again
/model [NAME]     show the model, or continue with this one
/set [NAME VALUE] show the options of generating text, or change one
/show             show the model, its options and the length of the conversation
/save FILE        write the conversation to a file
/load FILE        continue the conversation of a file
/exit             leave (or Ctrl-D)
""" begins and ends a message of several lines; Alt-Enter adds a line.
Ctrl-C stops an answer."#;

/// Names of the commands, for completion.
const COMMANDS: &[&str] = &[
    "/audio",
    "/clear",
    "/exit",
    "/help",
    "/image",
    "/load",
    "/model",
    "/regenerate",
    "/save",
    "/set",
    "/show",
    "/system",
    "/video",
];

/// Meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
enum ChatInput<'a> {
    Empty,
    Help,
    Clear,
    System(&'a str),
    Attach(MediaKind, &'a str),
    Regenerate,
    Model(&'a str),
    Set(&'a str),
    Show,
    Save(&'a str),
    Load(&'a str),
    Exit,
    Unknown(&'a str),
    Message(&'a str),
}

fn no_template(model: &str) -> Error {
    let message =
        format!("{model} has no chat template; `narthex complete -m {model} TEXT` continues a text");
    Error::invalid("model", message)
}

fn parse(line: &str) -> ChatInput<'_> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word {
        "" => ChatInput::Empty,
        "/help" | "/?" => ChatInput::Help,
        "/clear" => ChatInput::Clear,
        "/system" => ChatInput::System(rest),
        "/image" => ChatInput::Attach(MediaKind::Image, unquoted(rest)),
        "/audio" => ChatInput::Attach(MediaKind::Audio, unquoted(rest)),
        "/video" => ChatInput::Attach(MediaKind::Video, unquoted(rest)),
        "/regenerate" => ChatInput::Regenerate,
        "/model" => ChatInput::Model(rest),
        "/set" => ChatInput::Set(rest),
        "/show" => ChatInput::Show,
        "/save" => ChatInput::Save(rest),
        "/load" => ChatInput::Load(rest),
        "/exit" | "/quit" | "/bye" => ChatInput::Exit,
        _ if word.starts_with('/') && !word[1..].contains('/') => ChatInput::Unknown(word),
        _ => ChatInput::Message(line),
    }
}

/// Returns a path without quotes around it, which terminals add to a file that is dropped on them.
fn unquoted(path: &str) -> &str {
    let quotes = ['"', '\''].into_iter();
    let mut inner = quotes.filter_map(|quote| path.strip_prefix(quote)?.strip_suffix(quote));
    inner.next().unwrap_or(path)
}

/// Messages that precede the first question.
pub(super) fn first_messages(system: Option<&str>) -> Vec<Message> {
    system.into_iter().map(|text| Message::new(Role::System, text.to_owned())).collect()
}

/// Attachments of the first question of a conversation.
pub(super) struct Attachments {
    pub(super) media: Vec<Media>,
    pub(super) files: Vec<ReadDocument>,
}

/// Runs a conversation until the user leaves. Its first question is about these attachments.
pub(crate) fn run(
    gateway: &Gateway,
    args: &ChatArgs,
    model: OpenModel,
    tools: Option<ChatTools>,
    attachments: Attachments,
) -> anyhow::Result<()> {
    let Attachments { media, files } = attachments;
    let system = args.system.clone();
    let mut conversation = Conversation {
        gateway,
        args,
        options: args.generate.clone(),
        model,
        tools,
        messages: first_messages(system.as_deref()),
        system,
        media,
        files,
    };
    let mut editor = ChatEditor::new(gateway.chat_history(), COMMANDS);
    output::note(format!("{}; /help lists the commands.", conversation.model.readiness(gateway)));

    loop {
        let line = match editor.read() {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let input = parse(&line);
        if input == ChatInput::Exit {
            return Ok(());
        }
        interrupt::take();
        // The conversation continues, because the user can correct the command or the message.
        match conversation.take(input) {
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => exit::note(&error),
            Ok(()) => {}
        }
        interrupt::take();
    }
}

/// Returns whether a conversation cannot continue after an error: its output is gone.
fn is_fatal(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some()
}

/// A model in memory.
pub(super) struct OpenModel {
    /// Name of the model in requests.
    name: String,
    pub(super) status: ModelStatus,
    /// The model, if a running server has it in memory instead of this process.
    pub(super) served: Option<ServedModel>,
}

impl OpenModel {
    /// Opens a chat model that the user named: in a running server that has it in memory, or else in this process.
    pub(super) fn open(
        gateway: &Gateway,
        args: &ChatArgs,
        named: &str,
        tools: Option<&ChatTools>,
    ) -> anyhow::Result<Self> {
        if let Err(Error::WrongKind { is: ModelKind::Text, .. }) =
            gateway.check_kind(named, &[ModelKind::Chat])
        {
            return Err(no_template(named).into());
        }

        let scheme = stated_scheme(named, args.load.load.scheme)?;
        // A running server may not know the names of the settings file yet.
        let may_be_served = tools.is_none() && args.load.is_standard() && !gateway.is_alias(named);
        let served = if may_be_served { ServedModel::find(gateway, named, scheme) } else { None };
        // Requests to a running server have no documents.
        let served = served.filter(|served| served.status.kind != Some(ModelKind::Answer));
        let status = match &served {
            Some(served) => served.status.clone(),
            None => {
                let kinds = [ModelKind::Chat, ModelKind::Answer];
                load(gateway, named, &kinds, &Bars::unless(args.generate.quiet))?
            }
        };
        // A model from the hub or a path is known to have a template after it was compiled.
        if status.kind == Some(ModelKind::Text) {
            return Err(no_template(named).into());
        }
        // An additional name stays the model's name, because it has its own settings.
        let name = if gateway.is_alias(named) { named.to_owned() } else { status.id() };
        Ok(Self { name, status, served })
    }

    /// Returns a sentence about the model, without its full stop.
    fn readiness(&self, gateway: &Gateway) -> String {
        let shown = if gateway.is_alias(&self.name) { &self.name } else { self.status.name.as_str() };
        let by = if self.served.is_some() { ", in the memory of a running server" } else { "" };
        format!("{shown} is ready{by}")
    }

    /// Returns true if the model answers with parts of texts.
    fn reads_texts(&self) -> bool {
        self.status.kind == Some(ModelKind::Answer)
    }

    /// Returns the files if the model reads them as documents.
    pub(super) fn documents<'a>(&self, files: &'a [ReadDocument]) -> &'a [ReadDocument] {
        if self.reads_texts() { files } else { &[] }
    }

    /// Returns the model for an answer with these options.
    pub(super) fn to_answer<'a>(
        &'a self,
        gateway: &'a Gateway,
        args: &'a GenerateArgs,
        documents: &'a [ReadDocument],
    ) -> ChatModel<'a> {
        let Self { name, status, served } = self;
        ChatModel { gateway, args, name, status, served: served.as_ref(), documents }
    }
}

/// A conversation and the settings of its answers.
struct Conversation<'a> {
    gateway: &'a Gateway,
    args: &'a ChatArgs,
    options: GenerateArgs,
    model: OpenModel,
    tools: Option<ChatTools>,
    system: Option<String>,
    messages: Vec<Message>,
    /// Images, frames of videos and sounds that go with the next message.
    media: Vec<Media>,
    /// Texts that a question-answering model reads for every question. Other models read them with the next message.
    files: Vec<ReadDocument>,
}

impl Conversation<'_> {
    /// Does what a line asks for.
    fn take(&mut self, input: ChatInput<'_>) -> anyhow::Result<()> {
        match input {
            ChatInput::Empty | ChatInput::Exit => {}
            ChatInput::Help => output::note(HELP),
            ChatInput::Clear => self.restart(self.system.clone()),
            ChatInput::System("") => {
                output::note(self.system.as_deref().unwrap_or("There are no instructions."));
            }
            ChatInput::System(text) => self.restart(Some(text.to_owned())),
            ChatInput::Attach(MediaKind::Image, "") => output::note("expected the file of an image"),
            ChatInput::Attach(MediaKind::Audio, "") => output::note("expected the file of a sound"),
            ChatInput::Attach(MediaKind::Video, "") => output::note("expected the file of a video"),
            ChatInput::Attach(kind, file) => self.attach(kind, Path::new(file))?,
            ChatInput::Regenerate => self.regenerate()?,
            ChatInput::Model("") => output::note(self.model.status.id()),
            ChatInput::Model(name) => self.change_model(name)?,
            ChatInput::Set("") => output::note(self.options.listed()),
            ChatInput::Set(setting) => self.set(setting)?,
            ChatInput::Show => output::note(self.description()),
            ChatInput::Save("") | ChatInput::Load("") => output::note("expected the name of a file"),
            ChatInput::Save(file) => {
                conversation_file::save(Path::new(file), &self.model.status.id(), &self.messages)?;
                output::note(format!("{} messages are in {file}", self.messages.len()));
            }
            ChatInput::Load(file) => {
                self.messages = conversation_file::load(Path::new(file))?;
                self.system = conversation_file::instructions(&self.messages);
                output::note(format!("{} messages from {file}", self.messages.len()));
            }
            ChatInput::Unknown(word) => output::note(format!("unknown command {word}\n{HELP}")),
            ChatInput::Message(text) => {
                let media = std::mem::take(&mut self.media);
                let text = match self.model.reads_texts() {
                    true => text.to_owned(),
                    false => question_files::before(&std::mem::take(&mut self.files), text),
                };
                self.ask(media::question(media, text))?;
            }
        }

        Ok(())
    }

    fn restart(&mut self, system: Option<String>) {
        self.messages = first_messages(system.as_deref());
        self.system = system;
        self.media.clear();
    }

    /// Attaches an image, a sound or a video to the next message.
    fn attach(&mut self, kind: MediaKind, file: &Path) -> anyhow::Result<()> {
        self.gateway.check_reads(&self.model.name, kind)?;
        let media = media::read(kind, file)?;
        let frames = match kind {
            MediaKind::Video => format!(" ({} frames)", media.len()),
            MediaKind::Image | MediaKind::Audio => String::new(),
        };
        self.media.extend(media);
        output::note(format!("{}{frames} goes with the next message", file.display()));
        Ok(())
    }

    /// Asks the last question again.
    fn regenerate(&mut self) -> anyhow::Result<()> {
        let Some(last) = self.messages.iter().rposition(|message| message.role == Role::User) else {
            output::note("There is no question yet.");
            return Ok(());
        };
        let question = self.messages[last].content.clone();
        let later = self.messages.split_off(last);
        // The earlier answer stays if there is no new one.
        self.ask(question).inspect_err(|_| self.messages.extend(later))
    }

    /// Opens another model, which continues the conversation.
    fn change_model(&mut self, name: &str) -> anyhow::Result<()> {
        self.model = OpenModel::open(self.gateway, self.args, name, self.tools.as_ref())?;
        output::note(self.model.readiness(self.gateway));
        Ok(())
    }

    /// Changes an option.
    fn set(&mut self, setting: &str) -> anyhow::Result<()> {
        let (name, value) = setting.split_once(char::is_whitespace).unwrap_or((setting, ""));
        let changed = self.options.with(name, value.trim())?;
        options(&changed)?;
        self.options = changed;
        output::note(self.options.listed());
        Ok(())
    }

    fn description(&self) -> String {
        let context = self.model.status.max_length.map(|tokens| format!("context      {tokens} tokens\n"));
        let sampling = self.gateway.manifest(&self.model.status.id()).ok().map(|manifest| manifest.sampling);
        let sampling: Vec<String> = sampling
            .iter()
            .flat_map(|sampling| sampling.stated())
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let recommended = if sampling.is_empty() { "none".to_owned() } else { sampling.join(", ") };
        format!(
            "model        {}\n{}messages     {}\ninstructions {}\npublisher    {recommended}\n{}",
            self.model.status.id(),
            context.unwrap_or_default(),
            self.messages.len(),
            self.system.as_deref().unwrap_or("none"),
            self.options.listed(),
        )
    }

    /// Prints the answer to a question. Without one, the question is forgotten with its media.
    fn ask(&mut self, question: Content) -> anyhow::Result<()> {
        let before = self.messages.len();
        self.messages.push(Message::new(Role::User, question));
        let documents = self.model.documents(&self.files);
        let model = self.model.to_answer(self.gateway, &self.options, documents);
        match tools::answer(&model, self.tools.as_mut(), &mut self.messages) {
            Ok(answer) => {
                print_speed(&self.options, &self.model.status, &answer);
                Ok(())
            }
            Err(error) => {
                self.messages.truncate(before);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        let check = |line, expected| assert_eq!(parse(line), expected);
        check("  ", ChatInput::Empty);
        check("/help", ChatInput::Help);
        check("/system be brief ", ChatInput::System("be brief"));
        check("/system", ChatInput::System(""));
        check("/set temperature 0.5", ChatInput::Set("temperature 0.5"));
        check("/load  a file.json ", ChatInput::Load("a file.json"));
        let image = |file| ChatInput::Attach(MediaKind::Image, file);
        check("/image  my cat.png ", image("my cat.png"));
        check("/image 'my cat.png'", image("my cat.png"));
        check("/image \"a's cat.png\"", image("a's cat.png"));
        check("/image '", image("'"));
        check("/audio 'my cat.wav'", ChatInput::Attach(MediaKind::Audio, "my cat.wav"));
        check("/video 'my cat.gif'", ChatInput::Attach(MediaKind::Video, "my cat.gif"));
        check("/regenerate", ChatInput::Regenerate);
        check("/exit", ChatInput::Exit);
        check("/nope x", ChatInput::Unknown("/nope"));
        check("/usr/bin is a folder", ChatInput::Message("/usr/bin is a folder"));
        check(" hello there ", ChatInput::Message("hello there"));
    }

    #[test]
    fn every_command_is_explained_and_completed() {
        for command in COMMANDS {
            assert!(!matches!(parse(command), ChatInput::Unknown(_) | ChatInput::Message(_)), "{command}");
            assert!(HELP.contains(command) || *command == "/help", "{command}");
        }
    }
}
