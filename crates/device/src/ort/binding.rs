//! Inputs and outputs of a session in memory that the caller owns. `ort`'s safe binding is not used, because it copies
//! borrowed inputs and allocates on every run.

use std::{
    ffi::{CStr, CString},
    marker::PhantomData,
    ptr,
};

use narthex_engine::executor::StepError;

use super::{
    Session,
    device_memory::DeviceTensor,
    value::{HostMemory, OwnedValue, Tensor, check},
};

/// Input and output names of one session, bound to memory.
pub(crate) struct Binding {
    raw: *mut ort_sys::OrtIoBinding,
    memory: HostMemory,
    /// All bound inputs, if the session's device has memory of its own. ONNX Runtime copies such an input when it is
    /// bound and not when the session runs, so every run binds it again.
    copied: Option<Vec<(CString, OwnedValue)>>,
    _not_shared: PhantomData<*mut ()>,
}

// SAFETY: ONNX Runtime's bindings are not tied to a thread, so they may be moved, and `&mut self` keeps use exclusive.
unsafe impl Send for Binding {}

impl Binding {
    /// Creates an empty binding.
    pub(crate) fn new(session: &Session) -> Result<Self, StepError> {
        let copied = session.copies_inputs().then(Vec::new);
        let memory = HostMemory::new()?;
        let mut binding = Self { raw: ptr::null_mut(), memory, copied, _not_shared: PhantomData };
        // SAFETY: the session is alive and the out-pointer is valid; the binding that it receives is released on drop.
        let status = unsafe { (ort::api().CreateIoBinding)(session.ptr(), &raw mut binding.raw) };
        check("create a binding", status)?;
        Ok(binding)
    }

    /// Binds an input by name.
    ///
    /// # Safety
    /// The tensor's memory must stay valid, and be written only between runs, until the name is bound again or the
    /// binding is dropped.
    pub(crate) unsafe fn input(&mut self, name: &CStr, tensor: Tensor<'_>) -> Result<(), StepError> {
        let value = self.memory.value(tensor)?;
        // SAFETY: binding, name and value are alive; the binding keeps a reference of its own to the value.
        let status = unsafe { (ort::api().BindInput)(self.raw, name.as_ptr(), value.0) };
        check("bind an input", status)?;
        if let Some(copied) = &mut self.copied {
            match copied.iter_mut().find(|(known, _)| known.as_c_str() == name) {
                Some((_, old)) => *old = value,
                None => copied.push((name.to_owned(), value)),
            }
        }
        Ok(())
    }

    /// Binds an output by name.
    ///
    /// # Safety
    /// The conditions of [`Self::input`] apply. Every run writes to the memory.
    pub(crate) unsafe fn output(&mut self, name: &CStr, tensor: Tensor<'_>) -> Result<(), StepError> {
        let value = self.memory.value(tensor)?;
        // SAFETY: as in `input`.
        let status = unsafe { (ort::api().BindOutput)(self.raw, name.as_ptr(), value.0) };
        check("bind an output", status)
    }

    /// Binds one tensor on the device to an input and to outputs, so that runs read it and write it in place.
    pub(crate) fn in_place<'n>(
        &mut self,
        input: &CStr,
        outputs: impl IntoIterator<Item = &'n CStr>,
        tensor: &DeviceTensor,
    ) -> Result<(), StepError> {
        self.device_input(input, tensor)?;
        outputs.into_iter().try_for_each(|output| self.device_output(output, tensor))
    }

    /// Binds a tensor on the device to an input.
    pub(super) fn device_input(&mut self, name: &CStr, tensor: &DeviceTensor) -> Result<(), StepError> {
        // SAFETY: binding, name and value are alive; the binding keeps a reference of its own to the value.
        let status = unsafe { (ort::api().BindInput)(self.raw, name.as_ptr(), tensor.value.0) };
        check("bind a tensor of the device", status)
    }

    /// Binds a tensor on the device to an output.
    pub(super) fn device_output(&mut self, name: &CStr, tensor: &DeviceTensor) -> Result<(), StepError> {
        // SAFETY: as for the input.
        let status = unsafe { (ort::api().BindOutput)(self.raw, name.as_ptr(), tensor.value.0) };
        check("bind a tensor of the device", status)
    }

    /// Releases all bound tensors.
    pub(super) fn clear(&mut self) {
        self.copied.iter_mut().for_each(Vec::clear);
        // SAFETY: the binding is alive.
        unsafe {
            (ort::api().ClearBoundInputs)(self.raw);
            (ort::api().ClearBoundOutputs)(self.raw);
        }
    }

    /// Runs the session on the bound inputs and outputs.
    pub(crate) fn run(&mut self, session: &mut Session) -> Result<(), StepError> {
        for (name, value) in self.copied.iter().flatten() {
            // SAFETY: as in `input`, whose caller guarantees that the memory of the value is valid.
            let status = unsafe { (ort::api().BindInput)(self.raw, name.as_ptr(), value.0) };
            check("bind an input", status)?;
        }
        // SAFETY: session and binding are alive and used exclusively; null run options are allowed.
        let status = unsafe { (ort::api().RunWithBinding)(session.ptr(), ptr::null(), self.raw) };
        check("run the graph", status)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: the pointer is null or belongs to this value, which releases it once.
        unsafe {
            if !self.raw.is_null() {
                (ort::api().ReleaseIoBinding)(self.raw);
            }
        }
    }
}
