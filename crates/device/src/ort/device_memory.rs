//! Tensors in the memory of a session's device, for values that every run both reads and writes.

use std::{ffi::CStr, ptr};

use narthex_engine::executor::StepError;
use narthex_spec::DType;
use ort::AsPointer;

use super::{
    Session,
    value::{HostMemory, OwnedValue, Tensor, check, element},
};
use crate::runtime::Runtime;

/// Memory in which a session expects one of its inputs, if it is not the host's memory.
pub(crate) struct DeviceMemory {
    allocator: *mut ort_sys::OrtAllocator,
    host: HostMemory,
    runtime: &'static Runtime,
}

// SAFETY: ONNX Runtime's allocators may be used from any thread; `&mut` or ownership keeps use of each tensor
// exclusive.
unsafe impl Send for DeviceMemory {}

/// A tensor in a device's memory.
pub(crate) struct DeviceTensor {
    pub(super) value: OwnedValue,
    dtype: DType,
    shape: Vec<i64>,
}

// SAFETY: a value is not tied to a thread.
unsafe impl Send for DeviceTensor {}

impl DeviceMemory {
    /// Returns the memory of the input `name`; `None` if it is the host's memory.
    pub(crate) fn of_input(
        runtime: &'static Runtime,
        session: &Session,
        name: &CStr,
    ) -> Result<Option<Self>, StepError> {
        let names = session.input_names();
        let place = names.iter().position(|own| own.as_bytes() == name.to_bytes());
        let mut infos = vec![ptr::null::<ort_sys::OrtMemoryInfo>(); names.len()];
        let api = ort::api();
        // SAFETY: the session is alive and the list has room for all of its inputs; the received descriptions belong to
        // the session.
        let status =
            unsafe { (api.SessionGetMemoryInfoForInputs)(session.ptr(), infos.as_mut_ptr(), infos.len()) };
        check("find a device's memory", status)?;
        let Some(&info) = place.and_then(|place| infos.get(place)).filter(|info| !info.is_null()) else {
            return Ok(None);
        };

        let mut kind = ort_sys::OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU;
        // SAFETY: the session is alive, and the description belongs to it.
        unsafe { (api.MemoryInfoGetDeviceType)(info, &raw mut kind) };
        if kind == ort_sys::OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU {
            return Ok(None);
        }

        let mut memory = Self { allocator: ptr::null_mut(), host: HostMemory::new()?, runtime };
        // SAFETY: session and description are alive; the allocator is released on drop.
        let status = unsafe { (api.CreateAllocator)(session.ptr(), info, &raw mut memory.allocator) };
        check("use a device's memory", status)?;
        Ok(Some(memory))
    }

    /// Allocates a tensor with undefined contents.
    pub(crate) fn tensor(&self, dtype: DType, shape: &[i64]) -> Result<DeviceTensor, StepError> {
        let mut value = OwnedValue(ptr::null_mut());
        // SAFETY: the allocator is alive, and the executor that owns it drops the session after every tensor.
        let status = unsafe {
            (ort::api().CreateTensorAsOrtValue)(
                self.allocator,
                shape.as_ptr(),
                shape.len(),
                element(dtype),
                &raw mut value.0,
            )
        };
        check("allocate on the device", status)?;
        Ok(DeviceTensor { value, dtype, shape: shape.to_vec() })
    }

    /// Copies a whole tensor from the device.
    ///
    /// # Panics
    /// `T` does not have the size of the tensor's elements.
    pub(crate) fn read<T: bytemuck::Pod>(&self, tensor: &DeviceTensor) -> Result<Vec<T>, StepError> {
        let mut elements = vec![T::zeroed(); tensor.elements()];
        let host = self.host.value(Tensor::new(&mut elements, tensor.dtype, &tensor.shape))?;
        self.copy(&tensor.value, &host)?;
        Ok(elements)
    }

    /// Copies `elements` to a whole tensor on the device.
    ///
    /// # Panics
    /// `T` does not have the size of the tensor's elements, or their number differs.
    pub(crate) fn write<T: bytemuck::Pod>(
        &self,
        tensor: &mut DeviceTensor,
        elements: &mut [T],
    ) -> Result<(), StepError> {
        let host = self.host.value(Tensor::new(elements, tensor.dtype, &tensor.shape))?;
        self.copy(&host, &tensor.value)
    }

    fn copy(&self, from: &OwnedValue, to: &OwnedValue) -> Result<(), StepError> {
        let from = from.0.cast_const();
        let mut to = to.0.cast_const();
        // SAFETY: both values are alive and have the same type and shape. Without a stream, the call returns after the
        // copy is complete.
        let status = unsafe {
            (ort::api().CopyTensors)(
                self.runtime.environment().ptr().cast_mut(),
                &raw const from,
                &raw mut to,
                ptr::null_mut(),
                1,
            )
        };
        check("copy to or from the device", status)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.allocator.is_null() {
            // SAFETY: the allocator is ours and released once.
            unsafe { (ort::api().ReleaseAllocator)(self.allocator) };
        }
    }
}

impl DeviceTensor {
    /// Returns the extent of an axis.
    pub(super) fn extent(&self, axis: usize) -> i64 {
        self.shape[axis]
    }

    fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }
}
