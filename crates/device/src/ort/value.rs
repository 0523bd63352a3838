//! Tensors as ONNX Runtime's values: views of the host's memory, and errors of the calls that use them.

use std::{ffi::c_void, ptr};

use narthex_engine::executor::StepError;
use narthex_spec::DType;
use ort::ErrorCode;
use ort_sys::{ONNXTensorElementDataType as Element, OrtStatusPtr};

use crate::ep;

/// A view of a tensor in memory that the caller owns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor<'a> {
    data: *mut c_void,
    bytes: usize,
    dtype: DType,
    shape: &'a [i64],
}

impl<'a> Tensor<'a> {
    /// Creates a view of `elements`.
    ///
    /// # Panics
    /// The shape does not have that many elements, or the elements do not have the size of `dtype`.
    pub(crate) fn new<T: bytemuck::Pod>(elements: &mut [T], dtype: DType, shape: &'a [i64]) -> Self {
        let expected: i64 = shape.iter().product();
        assert_eq!(elements.len() as i64, expected, "a tensor of shape {shape:?}");
        assert_eq!(size_of::<T>(), dtype.size(), "elements of {dtype:?}");
        Self { data: elements.as_mut_ptr().cast(), bytes: size_of_val(elements), dtype, shape }
    }

    /// A tensor over the bytes of its elements.
    ///
    /// # Panics
    /// Panics if the shape does not describe that many bytes, or they are not aligned.
    pub(crate) fn of_bytes(bytes: &mut [u8], dtype: DType, shape: &'a [i64]) -> Self {
        let expected: i64 = shape.iter().product();
        assert_eq!(bytes.len(), expected as usize * dtype.size(), "bytes of a tensor of shape {shape:?}");
        let data: *mut u8 = bytes.as_mut_ptr();
        assert!((data as usize).is_multiple_of(dtype.size()), "alignment of {dtype:?}");
        Self { data: data.cast(), bytes: bytes.len(), dtype, shape }
    }
}

pub(super) fn check(what: &'static str, status: OrtStatusPtr) -> Result<(), StepError> {
    // SAFETY: the C API has just returned the status; `ort` takes ownership of it and releases it.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| {
        let message = format!("{what}: {}", error.message());
        let lost = error.code() == ErrorCode::DeviceReset || ep::is_device_loss(&message);
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

/// ONNX Runtime's description of the host's memory.
pub(super) struct HostMemory(*mut ort_sys::OrtMemoryInfo);

// SAFETY: a description is not tied to a thread and never changes.
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub(super) fn new() -> Result<Self, StepError> {
        let mut memory = Self(ptr::null_mut());
        // SAFETY: the out-pointer is valid; the description that it receives is released on drop.
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

    /// Creates a value over a tensor's memory, which must stay valid while the value is used.
    pub(super) fn value(&self, tensor: Tensor<'_>) -> Result<OwnedValue, StepError> {
        let mut value = OwnedValue(ptr::null_mut());
        // SAFETY: the tensor describes valid memory of that length; callers guarantee that it stays valid while the
        // value is used.
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
            // SAFETY: the description belongs to this value, which releases it once.
            unsafe { (ort::api().ReleaseMemoryInfo)(self.0) };
        }
    }
}

pub(super) struct OwnedValue(pub(super) *mut ort_sys::OrtValue);

impl Drop for OwnedValue {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the handle belongs to this value, which releases it once; the memory it describes is not
            // accessed.
            unsafe { (ort::api().ReleaseValue)(self.0) };
        }
    }
}
