//! A call of a node: its tensors, and tasks on ONNX Runtime's threads. The node is ONNX Runtime's, or a member of a
//! chain, whose tensors are those of the chain or values between its members.

use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::atomic::{AtomicBool, Ordering},
};

use half::f16;
use ort::{AsPointer, operator::ComputeContext};
use parking_lot::Mutex;

use super::{
    region::{Leader, Region},
    values::{MAX_ROWS, Rows, ValueLocation, Values},
};

/// A call of a node.
pub(super) struct Call<'a> {
    /// Call of the node of ONNX Runtime.
    context: &'a ComputeContext,
    /// Position of the node in a chain, if it is a member of one.
    member: Option<Member<'a>>,
}

/// A member of a chain in a call of the chain.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// The values between members.
    pub(super) values: &'a Values,
    /// Locations of the member's inputs.
    pub(super) inputs: &'a [ValueLocation],
    /// Locations of the member's outputs. They differ from each other and from those of its inputs.
    pub(super) outputs: &'a [ValueLocation],
    /// Leader of the region in which the chain runs.
    pub(super) leader: &'a Leader<'a>,
}

pub(super) struct Input<'a, T = f32> {
    pub(super) data: &'a [T],
    pub(super) shape: &'a [i64],
}

/// Element of an input.
pub(super) trait Element: Copy {
    /// Type of the element in ONNX Runtime's C API.
    const KIND: ort_sys::ONNXTensorElementDataType;
}

impl Element for f32 {
    const KIND: ort_sys::ONNXTensorElementDataType =
        ort_sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

impl Element for f16 {
    const KIND: ort_sys::ONNXTensorElementDataType =
        ort_sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
}

impl Element for i8 {
    const KIND: ort_sys::ONNXTensorElementDataType =
        ort_sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
}

impl Element for i32 {
    const KIND: ort_sys::ONNXTensorElementDataType =
        ort_sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
}

/// An input whose element type has not been checked.
struct RawInput<'a> {
    data: *const c_void,
    kind: ort_sys::ONNXTensorElementDataType,
    shape: &'a [i64],
}

impl Input<'_> {
    /// Returns the number of elements in the last axis; 0 for a scalar.
    pub(super) fn columns(&self) -> usize {
        self.shape.last().map_or(0, |&extent| extent as usize)
    }
}

fn check(status: ort_sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: the C API has just returned the status; `ort` takes ownership of it and releases it.
    unsafe { ort::Error::result_from_status(status) }
}

impl<'a> Call<'a> {
    /// Runs `compute` as the body of an operator. A panic becomes an error, because it must not reach ONNX Runtime.
    pub(super) fn run(
        context: &'a ComputeContext,
        compute: impl FnOnce(&Self) -> ort::Result<()>,
    ) -> ort::Result<()> {
        let call = Self { context, member: None };
        catch_unwind(AssertUnwindSafe(|| compute(&call))).unwrap_or_else(|_| Err(panicked()))
    }

    fn raw(&self) -> *mut ort_sys::OrtKernelContext {
        self.context.ptr().cast_mut()
    }

    /// Returns the call of a member, if this is a call of a chain.
    pub(super) fn of_member<'m>(&'m self, member: Member<'m>) -> Call<'m> {
        Call { context: self.context, member: Some(member) }
    }

    /// Runs `lead` in a parallel region on ONNX Runtime's threads, on any one of them.
    pub(super) fn in_region(
        &self,
        threads: usize,
        lead: impl FnOnce(&Leader<'_>) -> ort::Result<()>,
    ) -> ort::Result<()> {
        let region = Region::default();
        if threads <= 1 {
            return region.lead().map_or_else(|| Err(panicked()), |leader| lead(&leader));
        }
        let steps = Mutex::new(Some(Steps(lead)));
        let result = Mutex::new(None);
        self.parallel(threads, |_| match region.lead() {
            None => region.help(),
            Some(leader) => {
                let steps = steps.lock().take();
                let ended = steps.map(|Steps(lead)| lead(&leader));
                *result.lock() = ended;
            }
        })?;
        result.into_inner().unwrap_or_else(|| Err(panicked()))
    }

    /// Returns an input that the operator declares as required.
    pub(super) fn input<T: Element>(&self, index: usize) -> ort::Result<Input<'a, T>> {
        self.optional(index)?.ok_or_else(missing)
    }

    /// Returns an input, if the node has it.
    pub(super) fn optional<T: Element>(&self, index: usize) -> ort::Result<Option<Input<'a, T>>> {
        let Some(RawInput { data, kind, shape }) = self.raw_input(index)? else { return Ok(None) };
        if kind != T::KIND {
            return Err(ort::Error::new("an input has an unexpected element type"));
        }
        // SAFETY: the tensor lives as long as the call, and its shape states the number of its elements, which have
        // this type.
        Ok(Some(Input { data: unsafe { elements(data.cast(), count(shape)) }, shape }))
    }

    /// Returns the shape of an input.
    pub(super) fn shape(&self, index: usize) -> ort::Result<&'a [i64]> {
        Ok(self.raw_input(index)?.ok_or_else(missing)?.shape)
    }

    /// Returns an input, or `None` if its memory is that of an output, which is then updated in place.
    pub(super) fn unless_in_place<T: Element>(
        &self,
        index: usize,
        output: &[T],
    ) -> ort::Result<Option<&'a [T]>> {
        let in_place = self.raw_input(index)?.is_some_and(|input| input.data == output.as_ptr().cast());
        if in_place { Ok(None) } else { Ok(Some(self.input(index)?.data)) }
    }

    fn raw_input(&self, index: usize) -> ort::Result<Option<RawInput<'a>>> {
        let Some(member) = self.member else { return self.tensor(index) };
        match member.inputs.get(index).copied().unwrap_or(ValueLocation::Absent) {
            ValueLocation::Absent => Ok(None),
            ValueLocation::Input(at) => self.tensor(at),
            location => {
                // SAFETY: a member's outputs have other locations than its inputs, so the value is not written before the
                // call of the member has ended.
                let rows = unsafe { member.values.read(location) };
                let Rows { data, shape } = rows.ok_or_else(missing)?;
                Ok(Some(RawInput { data: data.cast(), kind: f32::KIND, shape }))
            }
        }
    }

    /// Returns an input of the node of ONNX Runtime.
    fn tensor(&self, index: usize) -> ort::Result<Option<RawInput<'a>>> {
        let api = ort::api();
        let mut value = ptr::null();
        let mut data = ptr::null();
        let mut kind = ort_sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let mut shape = ptr::null();
        let mut rank = 0;
        // SAFETY: the context is alive during the call, and every out-pointer is valid.
        unsafe {
            check((api.KernelContext_GetInput)(self.raw(), index, &raw mut value))?;
            if value.is_null() {
                return Ok(None);
            }
            check((api.GetTensorElementTypeAndShapeDataReference)(
                value,
                &raw mut kind,
                &raw mut shape,
                &raw mut rank,
            ))?;
            check((api.GetTensorData)(value, &raw mut data))?;
        }
        // SAFETY: the shape belongs to the tensor, which lives as long as the call.
        Ok(Some(RawInput { data, kind, shape: unsafe { elements(shape, rank) } }))
    }

    /// Returns an output whose elements have the type that the operator declares. The caller must write all elements,
    /// and request each output once.
    pub(super) fn output<T: Element>(&self, index: usize, shape: &[i64]) -> ort::Result<&'a mut [T]> {
        let data: *mut T = match self.member {
            None => self.output_tensor(index, shape)?.cast(),
            Some(member) => {
                let location = member.outputs.get(index).copied().unwrap_or(ValueLocation::Absent);
                self.member_output(member.values, location, shape, T::KIND)?.cast()
            }
        };
        if data.is_null() || count(shape) == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the memory was allocated for this shape and the type of the operator, and no other call uses it.
        Ok(unsafe { slice::from_raw_parts_mut(data, count(shape)) })
    }

    /// Returns the memory of an output of a member of a chain.
    fn member_output(
        &self,
        values: &Values,
        location: ValueLocation,
        shape: &[i64],
        kind: ort_sys::ONNXTensorElementDataType,
    ) -> ort::Result<*mut c_void> {
        let output = match location {
            ValueLocation::Output(at) => Some(self.output_tensor(at, shape)?),
            _ => None,
        };
        if let (ValueLocation::Output(MAX_ROWS..), Some(cache)) = (location, output) {
            return Ok(cache);
        }
        if kind != f32::KIND {
            return Err(ort::Error::new("a value between the nodes of a chain has an unexpected type"));
        }
        // SAFETY: the location is that of no input and of no other output of the member, so the earlier value is not in
        // use. ONNX Runtime has allocated the output for this shape.
        let data = unsafe { values.write(location, shape, output.map(<*mut c_void>::cast)) };
        data.map(<*mut f32>::cast).ok_or_else(|| ort::Error::new("an output of a chain has no buffer"))
    }

    /// Returns the memory of an output of the node of ONNX Runtime.
    fn output_tensor(&self, index: usize, shape: &[i64]) -> ort::Result<*mut c_void> {
        let api = ort::api();
        let mut value = ptr::null_mut();
        let mut data = ptr::null_mut();
        // SAFETY: the context is alive during the call, every out-pointer is valid, and the shape is copied.
        unsafe {
            let status =
                (api.KernelContext_GetOutput)(self.raw(), index, shape.as_ptr(), shape.len(), &raw mut value);
            check(status)?;
            if value.is_null() {
                return Err(ort::Error::new("an output is missing"));
            }
            check((api.GetTensorMutableData)(value, &raw mut data))?;
        }
        Ok(data)
    }

    /// Runs `task` for every number below `count` on ONNX Runtime's threads, and waits until all have ended.
    pub(super) fn parallel(&self, count: usize, task: impl Fn(usize) + Sync) -> ort::Result<()> {
        if count <= 1 {
            (0..count).for_each(task);
            return Ok(());
        }
        if let Some(member) = self.member {
            return if member.leader.parallel(count, &task) { Ok(()) } else { Err(panicked()) };
        }
        let tasks = Tasks { task, panicked: AtomicBool::new(false) };
        let data = ptr::from_ref(&tasks).cast_mut().cast();
        // SAFETY: the context is alive, the call returns after the last task and `tasks` outlives it, and the function
        // matches the type of `tasks`.
        check(unsafe {
            (ort::api().KernelContext_ParallelFor)(self.raw(), run_task_of(&tasks), count, 0, data)
        })?;
        if tasks.panicked.into_inner() { Err(panicked()) } else { Ok(()) }
    }
}

/// Steps that one thread runs.
struct Steps<F>(F);

// SAFETY: one thread takes the steps and runs them while the thread that owns their state waits for it. ONNX Runtime's
// context and the values of a chain belong to no thread.
unsafe impl<F> Send for Steps<F> {}

/// Tasks of one parallel loop.
struct Tasks<F> {
    task: F,
    panicked: AtomicBool,
}

/// Returns the function that ONNX Runtime calls for each task.
fn run_task_of<F: Fn(usize) + Sync>(_: &Tasks<F>) -> unsafe extern "C" fn(*mut c_void, usize) {
    unsafe extern "C" fn run<F: Fn(usize) + Sync>(tasks: *mut c_void, index: usize) {
        // SAFETY: `parallel` passes a reference to tasks of this type, which may be shared between threads.
        let tasks = unsafe { &*tasks.cast::<Tasks<F>>() };
        if catch_unwind(AssertUnwindSafe(|| (tasks.task)(index))).is_err() {
            tasks.panicked.store(true, Ordering::Relaxed);
        }
    }
    run::<F>
}

fn missing() -> ort::Error {
    ort::Error::new("an input is missing")
}

fn panicked() -> ort::Error {
    ort::Error::new("an operator of Narthex panicked; please report this")
}

fn count(shape: &[i64]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

/// # Safety
/// `start` must point to `length` elements that live as long as `'a` and are not written during that time. It may have
/// any value if `length` is 0.
unsafe fn elements<'a, T>(start: *const T, length: usize) -> &'a [T] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(start, length) }
}
