//! A device on trial for a package: how the package is loaded there, once and again.

use narthex_catalog::store::{Guard, MachineFolder};
use narthex_device::{DeviceError, ep::Device, fixed::Form};
use narthex_spec::{DeviceName, Ep, Recipe, Target, manifest::Manifest};

use crate::{
    error::Error,
    load::{
        cache_key::Circumstances,
        contexts, fallback,
        sessions::{Model, Opened, Opening},
    },
};

/// A device that is there, on trial for a package.
pub(crate) struct Candidate<'a> {
    pub(crate) opening: &'a Opening<'a>,
    pub(crate) name: DeviceName,
    pub(crate) device: Device,
    /// What this machine made for the two before.
    pub(crate) machine: MachineFolder,
    pub(crate) now: Circumstances,
}

impl Candidate<'_> {
    /// Loads the package on the device. What was refused on the way is added to `notes`.
    pub(super) fn open(&self, notes: &mut Vec<String>) -> Result<Opened, Error> {
        let _alone = self.alone()?;
        let opened = match self.compiler() {
            Some(compiler) if self.opening.manifest.bound.is_none() => contexts::open(self, compiler, notes),
            _ => self.opening.open(&self.device, self.opening.variant(self.name), Form::Graph),
        };
        opened.map_err(|error| self.explained(error))
    }

    /// Holds other loads off a folder that a provider fills by itself while it compiles; they find it filled.
    fn alone(&self) -> Result<Option<Guard>, Error> {
        let Opening { manifest, store, progress, cancel, head, .. } = self.opening;
        let devices = [Some(&self.device), head.map(|(_, device)| device)];
        let fills = |device: &Device| device.clone().cache().is_some_and(|folder| folder.is_some());
        if !devices.into_iter().flatten().any(fills) {
            return Ok(None);
        }
        let lock = format!("compiled-{}-{}", manifest.name.file_stem(), manifest.recipe.scheme);
        Ok(Some(store.lock(&lock, *progress, cancel.flag())?))
    }

    /// Of its devices, the one that compiles graphs ahead of time.
    fn compiler(&self) -> Option<(DeviceName, &Device)> {
        let devices = [Some((self.name, &self.device)), self.opening.head];
        devices.into_iter().flatten().find(|(_, device)| contexts::compiles(device))
    }

    /// An error with the reasons of the nodes that one of the devices refused.
    fn explained(&self, error: Error) -> Error {
        let head = self.opening.head.map(|(_, device)| device);
        let refusing = |ep: Ep| head.filter(|head| head.ep() == ep && self.device.ep() != ep);
        let device = match &error {
            Error::Device(DeviceError::NotWhole { ep, .. }) => refusing(*ep).unwrap_or(&self.device),
            _ => &self.device,
        };
        let Manifest { name, recipe: Recipe { scheme, .. }, .. } = self.opening.manifest;
        let next = |target: &Target| {
            format!(
                "`narthex check {name}@{scheme} --target {target}` takes the graph apart down to the nodes at fault"
            )
        };
        fallback::explained(self.opening.folder, device, error, next)
    }

    /// Loads the same again, however often that is asked for.
    pub(super) fn again(&self) -> impl FnMut() -> Result<Model, Error> + Send + use<> {
        let (kept, name, device) = (self.opening.keep(), self.name, self.device.clone());
        let (machine, now) = (self.machine.clone(), self.now.clone());
        move || {
            tracing::warn!(
                "{} was lost; {} is loaded there again",
                name.describe(),
                kept.opening().manifest.name
            );
            let (opening, device) = (kept.opening(), device.clone());
            let (machine, now) = (machine.clone(), now.clone());
            let mut notes = Vec::new();
            let opened = Candidate { opening: &opening, name, device, machine, now }.open(&mut notes)?;
            notes.iter().for_each(|note| tracing::warn!("{note}"));
            Ok(opened.model)
        }
    }
}
