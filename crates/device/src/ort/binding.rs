//! Inputs and outputs of a session over memory that the caller owns, without copies and without `ort`'s values: its
//! safe binding copies borrowed inputs, and allocates on every run.

use std::{
    ffi::{CStr, CString, c_void},
    marker::PhantomData,
    ptr,
};

use narthex_engine::executor::StepError;
use narthex_spec::DType;
use ort::ErrorCode;
use ort_sys::{ONNXTensorElementDataType as Element, OrtStatusPtr};

use super::{Session, resident::DeviceTensor};
use crate::ep;

/// A view of a tensor in memory that somebody else owns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor<'a> {
    data: *mut c_void,
    bytes: usize,
    dtype: DType,
    shape: &'a [i64],
}

impl<'a> Tensor<'a> {
    /// A tensor over `elements`.
    ///
    /// # Panics
    /// If the shape does not describe that many elements.
    pub(crate) fn new<T: bytemuck::Pod>(elements: &mut [T], dtype: DType, shape: &'a [i64]) -> Self {
        let expected: i64 = shape.iter().product();
        assert_eq!(elements.len() as i64, expected, "a tensor of shape {shape:?}");
        assert_eq!(size_of::<T>(), dtype.size(), "elements of {dtype:?}");
        Self { data: elements.as_mut_ptr().cast(), bytes: size_of_val(elements), dtype, shape }
    }
}

/// Names bound to memory, for one session.
pub(crate) struct Binding {
    raw: *mut ort_sys::OrtIoBinding,
    memory: HostMemory,
    /// Every input, where the session's device has memory of its own: ONNX Runtime copies an input there when it is
    /// bound, and not again when it is run.
    copied: Option<Vec<(CString, OwnedValue)>>,
    _not_shared: PhantomData<*mut ()>,
}

// SAFETY: ONNX Runtime's bindings have no thread of their own; they may be moved, and `&mut self` keeps use exclusive.
unsafe impl Send for Binding {}

pub(super) fn check(what: &'static str, status: OrtStatusPtr) -> Result<(), StepError> {
    // SAFETY: the status was just returned by the C API and is handed over to `ort`, which releases it.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| {
        let message = format!("{what}: {}", error.message());
        let lost = error.code() == ErrorCode::DeviceReset || ep::is_loss(&message);
        if lost { StepError::Lost { message } } else { StepError::Device { message } }
    })
}

pub(super) fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DType::F16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DType::Bf16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        DType::U8 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        DType::I8 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        DType::I32 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        DType::I64 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        DType::Bool => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    }
}

impl Binding {
    /// An empty binding.
    pub(crate) fn new(session: &Session) -> Result<Self, StepError> {
        let copied = session.copies_inputs().then(Vec::new);
        let memory = HostMemory::new()?;
        let mut binding = Self { raw: ptr::null_mut(), memory, copied, _not_shared: PhantomData };
        // SAFETY: the session is alive and the out-pointer is valid; what it receives is released on drop.
        let status = unsafe { (ort::api().CreateIoBinding)(session.ptr(), &raw mut binding.raw) };
        check("make a binding", status)?;
        Ok(binding)
    }

    /// Binds an input by name.
    ///
    /// # Safety
    /// The tensor's memory must stay valid, and be written only between runs, until the name is bound anew or the
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
    /// As for [`Self::input`]; the memory is written by every run.
    pub(crate) unsafe fn output(&mut self, name: &CStr, tensor: Tensor<'_>) -> Result<(), StepError> {
        let value = self.memory.value(tensor)?;
        // SAFETY: as in `input`.
        let status = unsafe { (ort::api().BindOutput)(self.raw, name.as_ptr(), value.0) };
        check("bind an output", status)
    }

    /// Binds one tensor of the device to an input and its outputs: runs read it and write it in place.
    pub(crate) fn in_place<'n>(
        &mut self,
        input: &CStr,
        outputs: impl IntoIterator<Item = &'n CStr>,
        tensor: &DeviceTensor,
    ) -> Result<(), StepError> {
        let value = tensor.value.0;
        // SAFETY: binding, name and value are alive; the binding keeps a reference of its own to the value.
        let status = unsafe { (ort::api().BindInput)(self.raw, input.as_ptr(), value) };
        check("bind a tensor of the device", status)?;
        outputs.into_iter().try_for_each(|output| {
            // SAFETY: as for the input.
            let status = unsafe { (ort::api().BindOutput)(self.raw, output.as_ptr(), value) };
            check("bind a tensor of the device", status)
        })
    }

    /// Runs the session on what is bound.
    pub(crate) fn run(&mut self, session: &mut Session) -> Result<(), StepError> {
        for (name, value) in self.copied.iter().flatten() {
            // SAFETY: as in `input`, whose promise holds for the memory that the value describes.
            let status = unsafe { (ort::api().BindInput)(self.raw, name.as_ptr(), value.0) };
            check("bind an input", status)?;
        }
        // SAFETY: session and binding are alive and exclusively ours; no run options are given.
        let status = unsafe { (ort::api().RunWithBinding)(session.ptr(), ptr::null(), self.raw) };
        check("run the graph", status)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: it is null or ours, and released once.
        unsafe {
            if !self.raw.is_null() {
                (ort::api().ReleaseIoBinding)(self.raw);
            }
        }
    }
}

/// The host's memory, as ONNX Runtime describes it.
pub(super) struct HostMemory(*mut ort_sys::OrtMemoryInfo);

// SAFETY: a description has no thread of its own and never changes.
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub(super) fn new() -> Result<Self, StepError> {
        let mut memory = Self(ptr::null_mut());
        // SAFETY: the out-pointer is valid; what it receives is released on drop.
        let status = unsafe {
            (ort::api().CreateCpuMemoryInfo)(
                ort_sys::OrtAllocatorType::OrtDeviceAllocator,
                ort_sys::OrtMemType::OrtMemTypeDefault,
                &raw mut memory.0,
            )
        };
        check("describe memory", status)?;
        Ok(memory)
    }

    /// A value over a tensor's memory, which must stay valid while the value is used.
    pub(super) fn value(&self, tensor: Tensor<'_>) -> Result<OwnedValue, StepError> {
        let mut value = OwnedValue(ptr::null_mut());
        // SAFETY: the tensor describes valid memory of that length; using it later is what callers promise.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                self.0,
                tensor.data,
                tensor.bytes,
                tensor.shape.as_ptr(),
                tensor.shape.len(),
                element(tensor.dtype),
                &raw mut value.0,
            )
        };
        check("describe a tensor", status)?;
        Ok(value)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the description is ours and released once.
            unsafe { (ort::api().ReleaseMemoryInfo)(self.0) };
        }
    }
}

pub(super) struct OwnedValue(pub(super) *mut ort_sys::OrtValue);

impl Drop for OwnedValue {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the handle is ours and released once; the memory it describes is not touched.
            unsafe { (ort::api().ReleaseValue)(self.0) };
        }
    }
}
