//! The threads of the backend: one operation at a time, cut into tasks that threads claim from a counter.
//!
//! Which thread runs a task is chance, so a task's result may depend on its index alone.
//! Between operations, threads spin for some microseconds and then sleep; a thread that sleeps through an
//! operation is not waited for.
#![expect(
    unsafe_code,
    reason = "a job borrows from the stack of the thread that waits for it"
)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Looks at a flag this many times before sleeping: about 20 microseconds.
const SPINS: usize = 1_000;

/// Returns how many threads this process may keep busy: its CPU affinity, within its cgroup's quota.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work(worker, task)`; borrowed, its lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

// SAFETY: the closure is `Sync`, and `Pool::run` keeps it alive until no thread holds the job.
unsafe impl Send for Job {}

/// Threads that share the tasks of an operation with the calling thread.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    slot: Mutex<Slot>,
    /// Tells threads that sleep of a new job.
    posted: Condvar,
    /// Tells the caller that sleeps that `active` is zero.
    idle: Condvar,
    /// Jobs posted so far, to be watched without the lock.
    epoch: AtomicUsize,
    next_task: AtomicUsize,
    /// Threads that hold the current job. Grows only under the lock, while the slot has a job.
    active: AtomicUsize,
    caller_sleeps: AtomicBool,
    panicked: AtomicBool,
}

#[derive(Default)]
struct Slot {
    job: Option<Job>,
    /// Threads that wait on `posted`: without one, posting costs no system call.
    sleepers: usize,
    stop: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("epoch", &self.epoch)
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `threads - 1` threads; the caller is the remaining one.
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let spawn = |worker: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("cpu-backend-{worker}"))
                .spawn(move || shared.work(worker))
                .expect("the system can start the threads that it reports as available")
        };
        let threads = (1..threads.max(1)).map(spawn).collect();
        Self { shared, threads }
    }

    /// Returns how many threads work on a job, the caller included.
    pub(super) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work(worker, task)` once for each task; worker indices are below [`Pool::workers`], and no two
    /// calls at one time have the same.
    ///
    /// # Panics
    ///
    /// If a call panics.
    pub(super) fn run(&self, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.threads.is_empty() {
            (0..tasks).for_each(|task| work(0, task));
            return;
        }
        let erased = std::ptr::from_ref(work);
        // SAFETY: only the lifetime changes; `Close` waits, also on a panic, until no thread holds the job.
        let work_static = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize, usize) + Sync + '_),
                *const (dyn Fn(usize, usize) + Sync),
            >(erased)
        };
        let mut slot = self.shared.lock();
        self.shared.next_task.store(0, Ordering::Relaxed);
        slot.job = Some(Job {
            work: work_static,
            tasks,
        });
        self.shared.epoch.fetch_add(1, Ordering::Release);
        let sleepers = slot.sleepers;
        drop(slot);
        if sleepers > 0 {
            self.shared.posted.notify_all();
        }
        let close = Close(&self.shared);
        self.shared.claim(0, tasks, work);
        drop(close);
        assert!(
            !self.shared.panicked.load(Ordering::Acquire),
            "no task panicked"
        );
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Under the lock: a thread that has seen the old epoch is asleep before the new one is announced.
        let mut slot = self.shared.lock();
        slot.stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        drop(slot);
        self.shared.posted.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has been reported by `run`.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, worker: usize, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(worker, task);
        }
    }

    /// The life of a thread.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            for _ in 0..SPINS {
                if self.epoch.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut slot = self.lock();
            while self.epoch.load(Ordering::Acquire) == seen {
                slot.sleepers += 1;
                slot = self
                    .posted
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner);
                slot.sleepers -= 1;
            }
            seen = self.epoch.load(Ordering::Acquire);
            if slot.stop {
                return;
            }
            let Some(job) = slot.job else {
                continue;
            };
            self.active.fetch_add(1, Ordering::Relaxed);
            drop(slot);
            let _active = Active(self);
            // SAFETY: `active` was raised while the slot held the job, so `Close` waits for this thread.
            let work = unsafe { &*job.work };
            self.claim(worker, job.tasks, work);
        }
    }
}

/// Lets go of a job, on a panic too.
struct Active<'a>(&'a Shared);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        if std::thread::panicking() {
            shared.panicked.store(true, Ordering::Release);
        }
        // Sequentially consistent with the caller's store and load: one of the two sees the other's.
        if shared.active.fetch_sub(1, Ordering::SeqCst) == 1
            && shared.caller_sleeps.load(Ordering::SeqCst)
        {
            drop(shared.lock());
            shared.idle.notify_all();
        }
    }
}

/// Takes the job back, and waits until no thread holds it.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.lock().job = None;
        for _ in 0..SPINS {
            if shared.active.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut slot = shared.lock();
        shared.caller_sleeps.store(true, Ordering::SeqCst);
        while shared.active.load(Ordering::SeqCst) != 0 {
            slot = shared
                .idle
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
        shared.caller_sleeps.store(false, Ordering::SeqCst);
        drop(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_thread_count() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(tasks, &|worker, task| {
                        assert!(worker < pool.workers());
                        runs[task].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(
                    runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 50),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn panic_of_a_task_reaches_the_caller() {
        let pool = Pool::new(3);
        let run = || pool.run(64, &|_, task| assert_ne!(task, 40));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }
}
