//! The threads of the backend: one operation at a time, cut into tasks that threads claim from counters.
//!
//! A thread claims its own tasks first, and then what others have left. The same rows are one thread's own in
//! every operation, so that activations stay in its core's cache: passing them between cores costs more than
//! reading each weight once a thread.
//!
//! Still, which thread runs a task is chance, so a task's result may depend on its index alone.
//! Between operations, threads spin for some microseconds and then sleep; a thread that sleeps through an
//! operation is not waited for.
#![expect(
    unsafe_code,
    reason = "a job borrows from the stack of the thread that waits for it"
)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::pack::ROWS;

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
}

/// Tasks of one thread that nobody has claimed, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Queue {
    next: AtomicUsize,
    end: AtomicUsize,
}

// SAFETY: the closure is `Sync`, and `Pool::run` keeps it alive until no thread holds the job.
unsafe impl Send for Job {}

/// Returns the first row that is thread `worker`'s own, of `rows` rows: `rows` for `workers`.
///
/// Threads get whole tiles of [`ROWS`], if there is one for each, else quarters of it.
pub(super) fn first_row(rows: usize, workers: usize, worker: usize) -> usize {
    let unit = if rows >= workers * ROWS {
        ROWS
    } else {
        ROWS / 4
    };
    rows.min(rows.div_ceil(unit) * worker / workers * unit)
}

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
    /// One for each thread.
    queues: Vec<Queue>,
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
        let shared = Arc::new(Shared {
            queues: (0..threads.max(1)).map(|_| Queue::default()).collect(),
            ..Shared::default()
        });
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
        self.run_owned(|worker| if worker == 0 { 0 } else { tasks }, work);
    }

    /// As [`Pool::run`], where `first(w)..first(w + 1)` are thread `w`'s own tasks; `first(workers())` is the number
    /// of tasks.
    ///
    /// # Panics
    ///
    /// As [`Pool::run`].
    pub(super) fn run_owned(
        &self,
        first: impl Fn(usize) -> usize,
        work: &(dyn Fn(usize, usize) + Sync),
    ) {
        let tasks = first(self.workers());
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
        for (worker, queue) in self.shared.queues.iter().enumerate() {
            queue.next.store(first(worker), Ordering::Relaxed);
            queue.end.store(first(worker + 1), Ordering::Relaxed);
        }
        slot.job = Some(Job { work: work_static });
        self.shared.epoch.fetch_add(1, Ordering::Release);
        let sleepers = slot.sleepers;
        drop(slot);
        if sleepers > 0 {
            self.shared.posted.notify_all();
        }
        let close = Close(&self.shared);
        self.shared.claim(0, work);
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

    fn claim(&self, worker: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let (before, from) = self.queues.split_at(worker);
        for queue in from.iter().chain(before) {
            let end = queue.end.load(Ordering::Relaxed);
            // A look before the claim: an empty queue stays in the caches of all.
            while queue.next.load(Ordering::Relaxed) < end {
                let task = queue.next.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(worker, task);
            }
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
            self.claim(worker, work);
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
    fn own_tasks_run_once_wherever_they_begin() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for firsts in [[0, 0, 5, 5, 5, 9, 9, 9], [3, 3, 3, 3, 3, 3, 3, 3], [0; 8]] {
                let first = |worker: usize| match worker {
                    0 => 0,
                    worker if worker == threads => 9,
                    worker => firsts[worker],
                };
                let runs: Vec<AtomicUsize> = (0..9).map(|_| AtomicUsize::new(0)).collect();
                pool.run_owned(first, &|_, task| {
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {firsts:?}"
                );
            }
        }
    }

    #[test]
    fn rows_have_owners_in_whole_tiles_where_there_are_enough() {
        for workers in 1..=9 {
            for rows in 0..400 {
                let firsts: Vec<usize> = (0..=workers)
                    .map(|worker| first_row(rows, workers, worker))
                    .collect();
                assert_eq!((firsts[0], firsts[workers]), (0, rows));
                assert!(firsts.is_sorted(), "{firsts:?}");
                let whole = |first: &&usize| rows < workers * ROWS || first.is_multiple_of(ROWS);
                assert!(
                    firsts[..workers].iter().all(|first| whole(&first)),
                    "{firsts:?}"
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
