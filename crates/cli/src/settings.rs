//! The gateway's settings from arguments, in pure functions.

use std::time::Duration;

use narthex_gateway::{Config, Error, Network, PrefixCacheConfig, UpstreamSettings};
use narthex_spec::Speculation;

use crate::args::{ChatArgs, DecoderLoadArgs, LoadArgs, ServeArgs, StoreArgs};

/// The gateway's settings for a command.
pub(crate) fn config(store: &StoreArgs, load: Option<&LoadArgs>) -> Config {
    let network = if store.offline { Network::CacheOnly } else { Network::Allowed };
    let standard = Config { home: store.home.clone(), network, ..Config::standard() };
    match load {
        None => standard,
        Some(load) => Config {
            scheme: load.scheme,
            threads: load.threads,
            providers: load.providers.clone(),
            device_map: load.device_map.clone(),
            npu: load.npu,
            npu_share: load.npu_share,
            power: load.power,
            npu_options: load.npu_option.unwrap_or_default(),
            ..standard
        },
    }
}

/// The gateway's settings for a command with a chat or text model.
pub(crate) fn decoder_config(store: &StoreArgs, decoder: &DecoderLoadArgs) -> Config {
    Config {
        place: decoder.place,
        kv_cache_dtype: decoder.kv_cache_dtype,
        draft_model: decoder.draft_model.clone(),
        kv_budget: decoder.kv_budget.map(bytes),
        context: decoder.context,
        ..config(store, Some(&decoder.load))
    }
}

/// Converts MiB to bytes.
pub(crate) fn bytes(mib: usize) -> usize {
    mib.saturating_mul(1 << 20)
}

/// Refuses settings of `serve` that contradict each other.
///
/// # Errors
/// [`Error::Invalid`] with both values.
pub(crate) fn check_serve(serve: &ServeArgs) -> Result<(), Error> {
    match (serve.kv_total, serve.load.kv_budget) {
        (Some(total), Some(budget)) if total < budget => {
            let message = format!(
                "expected at least the --kv-budget of one model, {budget} MiB, found {total} MiB; raise --kv-total or \
                 lower --kv-budget"
            );
            Err(Error::invalid("kv_total", message))
        }
        _ => Ok(()),
    }
}

/// The gateway's settings for `serve`.
pub(crate) fn serve_config(store: &StoreArgs, serve: &ServeArgs) -> Config {
    let upstreams = serve.upstream.iter();
    let upstreams = upstreams.map(|one| (one.name.clone(), UpstreamSettings::new(one.url.clone()))).collect();

    Config {
        slots: serve.slots,
        kv_total: serve.kv_total.map(bytes),
        prefix_cache: serve.prefix_cache_dir.clone().map(|folder| PrefixCacheConfig {
            folder,
            bytes: (serve.prefix_cache_size as u64).saturating_mul(1 << 20),
        }),
        max_models: serve.max_models,
        weights_total: serve.weights_total.map(|mib| (mib as u64).saturating_mul(1 << 20)),
        keep_alive: serve.keep_alive.unwrap_or_default(),
        max_queue: serve.max_queue,
        aliases: serve.alias.iter().map(|alias| (alias.name.clone(), alias.model.clone())).collect(),
        upstreams,
        default_model: serve.default_model.clone(),
        token_latency: (serve.token_latency > 0).then(|| Duration::from_millis(serve.token_latency)),
        tool_format: serve.tool_format.iter().rev().find(|one| one.model.is_none()).map(|one| one.format),
        tool_formats: serve
            .tool_format
            .iter()
            .filter_map(|one| Some((one.model.clone()?, one.format)))
            .collect(),
        speculation: serve.speculation,
        allow_media_urls: serve.allow_media_urls,
        ..decoder_config(store, &serve.load)
    }
}

/// The gateway's settings for `chat`.
pub(crate) fn chat_config(store: &StoreArgs, chat: &ChatArgs) -> Config {
    Config { tool_format: chat.tools.tool_format, ..decoder_config(store, &chat.load) }
}

/// The gateway's settings for `bench`, without speculation unless a draft model is to be measured: answers to random
/// prompts may repeat themselves, so that measured times with speculation would not apply to real texts.
pub(crate) fn bench_config(store: &StoreArgs, load: &DecoderLoadArgs) -> Config {
    let speculation = if load.draft_model.is_some() { Speculation::Auto } else { Speculation::Off };
    Config { speculation, ..decoder_config(store, load) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use narthex_spec::{KvCacheDtype, NpuPolicy, Power, Scheme, ToolFormat};

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn a_total_below_the_budget_of_one_model_is_refused() {
        let checked = |flags: &[&str]| {
            let args = Args::try_parse_from(["narthex", "serve"].iter().chain(flags)).unwrap();
            let Some(Command::Serve(serve)) = args.command else { panic!("not serve") };
            check_serve(&serve).map_err(|error| error.to_string())
        };
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["--kv-budget", "10000"]), Ok(()));
        assert_eq!(checked(&["--kv-total", "8"]), Ok(()));
        assert_eq!(checked(&["--kv-budget", "8", "--kv-total", "8"]), Ok(()));
        let error = checked(&["--kv-budget", "9", "--kv-total", "8"]).unwrap_err();
        assert!(error.contains("9 MiB, found 8 MiB"), "{error}");
    }

    #[test]
    fn an_upstream_has_a_name_and_an_address() {
        let parse = |text: &str| Args::try_parse_from(["narthex", "serve", "--upstream", text]);
        let args = parse("box=http://box.lan:8000/v1").unwrap();
        let Some(Command::Serve(serve)) = args.command else { panic!("not serve") };
        let config = serve_config(&args.store, &serve);
        assert_eq!(config.upstreams["box"].url.to_string(), "http://box.lan:8000/v1");
        assert_eq!(config.upstreams["box"].key, None);
        for wrong in
            ["http://box.lan", "a/b=http://box.lan", "box=ftp://box.lan", "Box=http://box.lan", "=http://a"]
        {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("expected"), "{wrong}: {error}");
        }
    }

    #[test]
    fn flags_become_settings() {
        let args = Args::try_parse_from([
            "narthex",
            "serve",
            "--offline",
            "--home",
            "/x",
            "--port",
            "9",
            "--slots",
            "3",
            "--kv-budget",
            "64",
            "--context",
            "1000",
            "--kv-total",
            "96",
            "--prefix-cache-dir",
            "/prefixes",
            "--prefix-cache-size",
            "3",
            "--token-latency",
            "90",
            "--speculation",
            "off",
            "--max-models",
            "5",
            "--weights-total",
            "9",
            "--alias",
            "gpt-4o=smollm2:135m",
            "--alias",
            "gpt-4=qwen3:0.6b@w4",
            "--tool-format",
            "hermes",
            "--tool-format",
            "qwen3:0.6b=llama-json",
            "--scheme",
            "w4",
            "--threads",
            "2",
            "--providers",
            "dml,cpu",
            "--npu",
            "off",
            "--npu-share",
            "0.5",
            "--power",
            "saver",
            "--npu-option",
            "vtcm=4,priority=high",
            "--kv-cache-dtype",
            "f32",
            "--place",
            "prefill=qnn,decode=cpu",
            "--draft-model",
            "smollm2:135m",
        ])
        .unwrap();
        let Some(Command::Serve(serve)) = args.command else { panic!("not serve") };
        let config = serve_config(&args.store, &serve);
        assert_eq!((config.slots, config.kv_budget, config.context), (3, Some(64 << 20), Some(1000)));
        let prefixes = PrefixCacheConfig { folder: "/prefixes".into(), bytes: 3 << 20 };
        assert_eq!(config.prefix_cache, Some(prefixes));
        assert_eq!(config.draft_model.as_deref(), Some("smollm2:135m"));
        assert_eq!(config.aliases["gpt-4"], "qwen3:0.6b@w4");
        assert_eq!(config.tool_format, Some(ToolFormat::Hermes));
        assert_eq!(config.tool_formats["qwen3:0.6b"], ToolFormat::LlamaJson);
        assert_eq!((config.kv_total, config.max_models, config.threads), (Some(96 << 20), 5, 2));
        assert_eq!(config.weights_total, Some(9 << 20));
        assert_eq!((config.speculation, config.kv_cache_dtype), (Speculation::Off, KvCacheDtype::F32));
        assert_eq!(config.token_latency, Some(Duration::from_millis(90)));
        assert_eq!((config.scheme, config.home), (Some(Scheme::W4), Some("/x".into())));
        assert_eq!((config.providers.to_string().as_str(), config.npu), ("directml,cpu", NpuPolicy::Off));
        assert_eq!((config.power, config.network), (Power::Saver, Network::CacheOnly));
        assert_eq!(config.npu_options.to_string(), "priority=high,vtcm=4");
        assert_eq!(
            (config.npu_share, config.place.unwrap().to_string().as_str()),
            (0.5, "prefill=qnn,decode=cpu")
        );
    }
}
