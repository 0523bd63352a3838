//! Freed memory goes back to the system. The test has a program of its own, because it reads the memory of the process.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn freed_memory_is_released() {
    use narthex_device::memory::release_freed_memory;
    use narthex_testkit::memory::anonymous_rss;

    const BLOCK: usize = 1 << 10;
    const COUNT: usize = 64 << 10;
    let mut blocks: Vec<Box<[u8]>> = (0..COUNT).map(|_| vec![1; BLOCK].into_boxed_slice()).collect();
    // The last block keeps the allocator from returning those before it by itself.
    blocks.drain(..COUNT - 1);
    let kept = anonymous_rss().unwrap();
    release_freed_memory();
    let after = anonymous_rss().unwrap();
    assert!(after + (COUNT * BLOCK / 2) as u64 <= kept, "{kept} bytes before, {after} after");
    assert_eq!(blocks[0][0], 1);
}
