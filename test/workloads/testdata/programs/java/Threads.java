import java.nio.file.*;
import java.util.concurrent.*;

public class Threads {
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(3);
        int sum = 0;
        for (Future<Integer> f : pool.invokeAll(java.util.List.<Callable<Integer>>of(() -> 40, () -> 1, () -> 1))) sum += f.get();
        pool.shutdown();
        Path dir = Files.createDirectory(Path.of("d")), file = Files.writeString(Path.of("f"), "text");
        Files.move(file, dir.resolve("f"), StandardCopyOption.ATOMIC_MOVE);
        Process child = new ProcessBuilder("cat", "d/f").start();
        System.out.println("sum " + sum + ", child " + new String(child.getInputStream().readAllBytes()) + ", exit " + child.waitFor());
    }
}
