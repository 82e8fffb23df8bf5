include!(concat!(env!("OUT_DIR"), "/answer.rs"));

fn sum() -> i32 {
    std::thread::spawn(|| add::add(40, 2)).join().unwrap()
}

fn main() {
    println!("sum {} of {}", sum(), ANSWER);
}

#[test]
fn sums() {
    assert_eq!(sum(), ANSWER);
}
