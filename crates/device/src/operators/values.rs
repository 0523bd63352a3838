//! Values between the nodes of a chain: rows in single precision, in buffers of the chain or in its outputs.

use std::cell::UnsafeCell;

/// Maximum rank of rows.
pub(super) const MAX_RANK: usize = 8;

/// Number of outputs of a chain with rows. Outputs with a cache follow them.
pub(super) const MAX_ROWS: usize = 8;

/// Location of an input or an output of a chain's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ValueLocation {
    /// The node does not have it.
    Absent,
    /// An input of the chain.
    Input(usize),
    /// An output of the chain. Later nodes may read it if its index is below [`MAX_ROWS`].
    Output(usize),
    /// A buffer of the chain.
    Buffer(usize),
}

/// Values of one call of a chain. Their memory is used again by the next call.
pub(super) struct Values {
    /// Values of the chain's outputs with rows, and then those of its buffers.
    values: Vec<UnsafeCell<StoredValue>>,
}

// SAFETY: a value's pointer is to its own memory or to an output of the current call, and neither belongs to a thread.
unsafe impl Send for Values {}

/// A value.
#[derive(Default)]
struct StoredValue {
    /// Memory of a buffer; empty for an output.
    memory: Vec<f32>,
    /// Elements, if the current call has written the value.
    data: Option<*mut f32>,
    shape: [i64; MAX_RANK],
    rank: usize,
}

/// Elements and shape of a value.
pub(super) struct Rows<'a> {
    pub(super) data: *const f32,
    pub(super) shape: &'a [i64],
}

impl Values {
    /// Returns the values of a chain with this number of buffers.
    pub(super) fn new(buffers: usize) -> Self {
        Self { values: (0..MAX_ROWS + buffers).map(|_| UnsafeCell::default()).collect() }
    }

    /// Forgets the values of the last call.
    pub(super) fn clear(&mut self) {
        self.values.iter_mut().for_each(|value| value.get_mut().data = None);
    }

    fn value(&self, location: ValueLocation) -> Option<&UnsafeCell<StoredValue>> {
        match location {
            ValueLocation::Output(at) if at < MAX_ROWS => self.values.get(at),
            ValueLocation::Buffer(at) => self.values.get(MAX_ROWS + at),
            ValueLocation::Absent | ValueLocation::Input(_) | ValueLocation::Output(_) => None,
        }
    }

    /// Returns the value at a location, if the current call has written it.
    ///
    /// # Safety
    /// The value must not be written while the result is in use.
    pub(super) unsafe fn read(&self, location: ValueLocation) -> Option<Rows<'_>> {
        // SAFETY: the caller guarantees that nothing writes the value.
        let value = unsafe { &*self.value(location)?.get() };
        Some(Rows { data: value.data?, shape: &value.shape[..value.rank] })
    }

    /// Gives a value its shape and its memory: `output` for an output, and memory of its own for a buffer. Returns
    /// that memory, or `None` if the location has no value, or if the shape has too many axes.
    ///
    /// # Safety
    /// The earlier value at the location must not be in use. `output` must have as many elements as the shape.
    pub(super) unsafe fn write(
        &self,
        location: ValueLocation,
        shape: &[i64],
        output: Option<*mut f32>,
    ) -> Option<*mut f32> {
        // SAFETY: the caller guarantees that no other reference to the value is in use.
        let value = unsafe { &mut *self.value(location)?.get() };
        value.shape.get_mut(..shape.len())?.copy_from_slice(shape);
        value.rank = shape.len();
        let data = match output {
            Some(output) => output,
            None => {
                let length = shape.iter().map(|&extent| extent as usize).product();
                if value.memory.len() < length {
                    value.memory.resize(length, 0.0);
                }
                value.memory.as_mut_ptr()
            }
        };
        value.data = Some(data);
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_last_until_the_next_call() {
        let mut values = Values::new(2);
        let (mut memory, place) = ([0.0; 6], ValueLocation::Buffer(1));
        let shape = |values: &Values, place| {
            // SAFETY: nothing writes the value while the result is in use.
            unsafe { values.read(place) }.map(|rows| (rows.data, rows.shape.to_vec()))
        };
        assert_eq!(shape(&values, place), None);
        // SAFETY: no value is in use, and the output has 6 elements.
        let (buffer, output) = unsafe {
            (
                values.write(place, &[2, 5], None),
                values.write(ValueLocation::Output(3), &[6], Some(&raw mut memory[0])),
            )
        };
        assert_eq!(shape(&values, place), buffer.map(|data| (data.cast_const(), vec![2, 5])));
        assert_eq!(shape(&values, ValueLocation::Output(3)), output.map(|data| (data.cast_const(), vec![6])));
        assert_eq!(output, Some(&raw mut memory[0]));
        for place in [
            ValueLocation::Absent,
            ValueLocation::Input(0),
            ValueLocation::Output(MAX_ROWS),
            ValueLocation::Buffer(2),
        ] {
            // SAFETY: as above.
            assert_eq!(unsafe { values.write(place, &[1], None) }, None, "{place:?}");
            assert_eq!(shape(&values, place), None, "{place:?}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { values.write(place, &[1; MAX_RANK + 1], None) }, None);
        values.clear();
        assert_eq!((shape(&values, place), shape(&values, ValueLocation::Output(3))), (None, None));
        // SAFETY: as above.
        assert_eq!(unsafe { values.write(place, &[3], None) }, buffer, "memory is used again");
    }
}
