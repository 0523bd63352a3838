//! The service for the init system of a machine.

use anyhow::bail;

use super::{
    definition::{InitSystem, ServiceDefinition, ServiceScope, ServiceSettings},
    launchd, systemd, tasks,
};

/// Composes the service.
///
/// # Errors
/// A system service without systemd, or of a program that only one user may read.
pub(super) fn compose(settings: &ServiceSettings) -> anyhow::Result<ServiceDefinition> {
    let is_system = settings.scope == ServiceScope::System;
    if is_system && settings.init != InitSystem::Systemd {
        bail!("--system needs systemd; without it, the service belongs to this user and starts at login");
    }
    if is_system && ["/home", "/root"].iter().any(|folder| settings.program.starts_with(folder)) {
        bail!(
            "a system service cannot run {}, which is in a user's home folder; install Narthex for all users, for \
             example as a .deb, or omit --system",
            settings.program.display()
        );
    }
    Ok(match settings.init {
        InitSystem::Systemd => systemd::service(settings),
        InitSystem::Launchd => launchd::service(settings),
        InitSystem::Tasks => tasks::service(settings),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(init: InitSystem, scope: ServiceScope) -> ServiceSettings {
        ServiceSettings {
            init,
            scope,
            program: "/opt/50% narthex/bin/narthex".into(),
            arguments: ["--port", "9000", "--default-model", "a \"b\" $c <&>"].map(str::to_owned).to_vec(),
            store: None,
            user_home: "/home/ada".into(),
            config: None,
            groups: vec!["render", "video"],
        }
    }

    fn shown(settings: &ServiceSettings) -> String {
        let service = compose(settings).unwrap();
        let calls = |title: &str, calls: &[Vec<String>]| {
            calls
                .iter()
                .map(|call| format!("{title}: {} {}\n", service.program, call.join(" ")))
                .collect::<String>()
        };
        let state = &service.state;
        format!(
            "{}: {}\nfile: {}\n{}{}{}state: {} {}\n{}{}\n{}",
            service.kind,
            service.name,
            service.file.display(),
            calls("probe", std::slice::from_ref(&service.probe)),
            calls("end", service.end.as_slice()),
            calls("start", &service.start),
            state.program,
            state.arguments.join(" "),
            calls("stop", &service.stop),
            calls("forget", &service.forget),
            service.text
        )
    }

    #[test]
    fn services_of_every_system_are_composed() {
        insta::assert_snapshot!("systemd_user", shown(&settings(InitSystem::Systemd, ServiceScope::User)));
        insta::assert_snapshot!(
            "systemd_system",
            shown(&settings(InitSystem::Systemd, ServiceScope::System))
        );
        insta::assert_snapshot!("launchd", shown(&settings(InitSystem::Launchd, ServiceScope::User)));
        insta::assert_snapshot!("tasks", shown(&settings(InitSystem::Tasks, ServiceScope::User)));
    }

    #[test]
    fn a_chosen_store_and_settings_folder_are_used() {
        let user = settings(InitSystem::Systemd, ServiceScope::User);
        let chosen = ServiceSettings {
            store: Some("/data/my models".into()),
            config: Some("/home/ada/settings".into()),
            ..user
        };
        let service = compose(&chosen).unwrap();
        assert!(service.text.contains(r#" serve --home "/data/my models" --port 9000"#), "{}", service.text);
        assert_eq!(service.file, Path::new("/home/ada/settings/systemd/user/narthex.service"));
    }

    #[test]
    fn services_that_cannot_work_are_refused() {
        let refused = |settings: &ServiceSettings| compose(settings).unwrap_err().to_string();
        for init in [InitSystem::Launchd, InitSystem::Tasks] {
            assert!(refused(&settings(init, ServiceScope::System)).contains("--system needs systemd"));
        }
        let own = ServiceSettings {
            program: "/home/ada/.local/bin/narthex".into(),
            ..settings(InitSystem::Systemd, ServiceScope::System)
        };
        assert!(refused(&own).contains("cannot run /home/ada/.local/bin/narthex"));
    }
}
